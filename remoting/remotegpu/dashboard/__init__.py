"""The dashboard: a web page with GPUs and their holders, for the operator and for an appliance without a cluster.

`static` has the files of the page. `page` has the code that all servers share: headers, token, stream of changes.
`state` and `load` have the data of the page, and `standalone` builds the data for one appliance. `appliance.http` and
the operator's dashboard use this package. It is independent of its server, and only reads.
"""
