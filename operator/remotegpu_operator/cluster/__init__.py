"""Access to the API server: calls with timeouts, stores of objects, Events, the Lease, and a work queue.

The whole operator reads and writes objects through this package. The operator writes nothing without the Lease
(`leadership`). The package has nothing specific to GPUs.
"""
