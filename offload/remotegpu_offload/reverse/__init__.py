"""Reverse mode: an application lies on a server, and a machine with nothing but Python runs it, paged from there.

The server publishes a folder as a signed manifest and pages named by their SHA-256; the client checks the signature and
every page, keeps pages on disk, and shows what the application may do before its first run. Only the standard library
is imported on the client's side, for it travels as one file, `remotegpu.pyz` (bootstrap.py).
"""
