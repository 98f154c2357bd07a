"""The client's stream of operations: batched, in order, and sent again where an acceptor was lost.

`stream` fills and sends batches, `journal` keeps those that another acceptor would need, `state` moves the storages,
and `link` opens the session when it is first needed. Called by the device and its kernels. It knows what is sent, not
what it means.
"""
