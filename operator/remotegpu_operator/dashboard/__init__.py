"""The dashboard: a read-only page of a cluster's pools, claims and usage.

A reader of the page sees only the objects that the reader may list.
`snapshot`, `usage` and `loads` build the content, and `access` asks the API server for the reader's rights. `serving`
runs the page in each replica of the operator, with or without the Lease. So the dashboard must not write, and must not
use the leader's state. `remotegpu.dashboard` has the page's static files. `remotegpu top` also uses `snapshot`, which
it finds by an entry point.
"""
