"""Builders: pure functions that build manifests, statuses and annotations from the state of a pool or claim.

`appliances` and `pools` build the objects of a pool. `claims`, `moves`, `resizes` and `suspension` build the status of
a claim, and `pods` the annotations of a pod. `landing`, `leaving` and `replacement` decide when a step is due. Pools,
claims, usage and the dashboard call the builders. They have no I/O and no Kubernetes client, and import nothing of the
operator but `allocation`.
"""
