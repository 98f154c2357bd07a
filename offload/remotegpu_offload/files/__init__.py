"""File paging: programs in the acceptor open the client's files by their paths, where the configuration allows it.

`layer` is the acceptor's half, under `open`, `os` and `pathlib`; `adapters`, `arrow` and `databases` are for libraries
that open files themselves. `server` is the client's half: `rules` has what may be read and written, and `opening` opens
it safely. Called by `client.services`, and loaded by `acceptor.session`. The server must not answer what the
configuration does not allow.
"""
