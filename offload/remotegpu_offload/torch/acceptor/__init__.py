"""The torch device in an acceptor: executes batches of operations in the order of their numbers, and answers requests.

`acceptor` has the thread that owns the device, and `executor` the storages and operations, without I/O. Where torch is
installed, `acceptor.session` loads this package. The package shares only `codec` with the client.
"""
