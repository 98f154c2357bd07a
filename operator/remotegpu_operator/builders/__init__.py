"""Builders: manifests, statuses and annotations, made from the state of a pool or claim.

`appliances` and `pools` build the objects of a pool; `claims`, `moves`, `resizes` and `suspension` are about a claim's
status, `pods` about a pod's annotations. `landing`, `leaving` and `replacement` decide when a step is due. Called by
pools, claims and usage; the dashboard describes states with them. Pure: no I/O and no Kubernetes client. Of the
operator they import only `allocation`.
"""
