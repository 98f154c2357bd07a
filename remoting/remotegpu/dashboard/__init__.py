"""The page that shows GPUs and their holders, for the operator and for an appliance without a cluster.

`static` has the page's files, `page` what its servers share (headers, token, stream of changes), `state` and `load` the
data that it shows, and `standalone` makes that data for one appliance. Used by `appliance.http` and by the operator's
dashboard. It must not know which of them serves it, and changes nothing in either.
"""
