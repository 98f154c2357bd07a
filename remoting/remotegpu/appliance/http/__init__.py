"""Plain HTTP: probes, metrics and the page of an appliance without a cluster.

In threads, since it also reports a hanging event loop. `visitors` limits what a client can take of connections, bytes
and time. Called by the start of the appliance. Read-only: no request changes a lease.
"""
