"""Plain HTTP: probes, metrics and the page of an appliance without a cluster.

In threads, since it also says when the event loop hangs. Called by the start of the appliance. It only reads.
"""
