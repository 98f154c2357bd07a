"""Plain HTTP: probes, metrics and the page of an appliance without a cluster.

The servers run in threads, so that they can report a hanging event loop. `visitors` limits the connections, bytes and
time of each client. The start of the appliance calls this package. Read-only: no request changes a lease.
"""
