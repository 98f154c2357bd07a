"""Plain HTTP: probes, metrics and the page of an appliance without a cluster.

In threads, since it also reports a hanging event loop. Called by the start of the appliance. Read-only.
"""
