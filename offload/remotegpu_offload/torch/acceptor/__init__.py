"""The torch device in an acceptor: executes batches of operations in the order of their numbers, and answers requests.

`acceptor` has the thread that owns the device, and `executor` its storages and operations, without I/O. Loaded by
`acceptor.session` where torch is installed. It runs where the accelerator is, and knows nothing of the client but
`codec`.
"""
