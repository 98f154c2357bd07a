"""Reverse mode: a server publishes an application, and a machine with only Python runs it and pages it from there.

The server publishes a folder as a signed manifest and pages that are named by their SHA-256. The client checks the
signature and every page, caches pages on disk, and shows the application's permissions before its first run. The
client's modules import only the standard library, because they are delivered as one file, `remotegpu.pyz`
(bootstrap.py).
"""
