"""HTTP servers next to the operator's loop: connections open to anyone, probes, and a thread for a server.

One file limits the connections, of each peer and in all; `probes` answers kubelet and Prometheus, and `beside` runs
work in a thread with its own event loop. Called by the operator, the webhook and the dashboard. It knows nothing of the
content that they serve.
"""
