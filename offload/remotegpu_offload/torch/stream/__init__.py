"""The client's stream of operations: sends them in batches and in order, and again if an acceptor was lost.

`stream` fills and sends batches, `journal` keeps those that a replacement acceptor would need, `state` moves the
storages, and `link` opens the session at the first use. The device and its kernels call this package. It sends
operations without knowing their meaning.
"""
