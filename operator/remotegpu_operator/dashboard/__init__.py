"""The page of a cluster's pools, claims and usage: read-only, live, and limited to what its reader may list.

`snapshot`, `usage` and `loads` have the content, and `access` asks the API server what a reader may list. `serving`
runs the page in each replica of the operator, with or without the Lease. So it must not write, and must not need what
only the leader knows. `remotegpu.dashboard` has the page's files. `remotegpu top` uses `snapshot`, which it finds by
its entry point.
"""
