"""The operator: it runs an appliance on each node of a pool, allocates GPUs to claims, and releases pods that wait.

kopf runs `python -m remotegpu_operator`. `handlers` says what happens when an object appears, changes or goes, and
`process` has what kopf starts: two loops while this replica holds the Lease, `pools` and `claims`.
`allocation` makes decisions and `builders` builds objects; both are pure. `cluster` reads and writes objects,
`appliances` reads the appliances' reports, and `usage` keeps records. `dashboard` runs in each replica. `webhook` and
`lifecycle` are separate programs. The operator writes nothing without the Lease, and must not import the device plugin.
"""
