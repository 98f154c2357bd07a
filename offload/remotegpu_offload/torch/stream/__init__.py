"""The client's stream of operations: batched, in order, and sent again where an acceptor was lost.

Called by the device and its kernels. It knows what is sent, not what it means.
"""
