"""The operator: pools become appliances, claims become allocations, and gates are lifted. The webhook is here too.

`python -m remotegpu_operator` runs the loops `pools` and `claims` while it holds the Lease; `handlers` wake the first.
`allocation` and `builders` decide and build (both pure), `cluster` reads and writes objects, `appliances` asks for
reports, `usage` keeps records. `dashboard` runs in each replica; `webhook` and `lifecycle` are programs of their own.
The operator writes nothing without the Lease, and must not import the device plugin.
"""
