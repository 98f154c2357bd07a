"""HTTP servers of the operator, the webhook and the dashboard, without the content that they serve.

One module limits the number of connections, in all and for each peer. `probes` answers the kubelet and Prometheus.
`beside` runs work in a thread with its own event loop.
"""
