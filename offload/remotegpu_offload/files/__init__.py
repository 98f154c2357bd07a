"""File paging: programs in the acceptor open the client's files by their paths, where the configuration allows it.

`layer` is the acceptor's half, below `open`, `os` and `pathlib`. `adapters`, `arrow` and `databases` support libraries
that open files in C. `server` is the client's half: `rules` decides which files may be read and written, and `opening`
opens them safely. `client.services` calls the client's half, and `acceptor.session` loads the other. The server must
refuse every request that the configuration does not allow.
"""
