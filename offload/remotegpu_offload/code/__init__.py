"""Code paging: the acceptor imports the user's modules from the client, which sends only modules the configuration
allows.

`finder` is the acceptor's half and `server` the client's. `allowed` decides which modules may be sent, and `sources`
finds them without importing anything. `link` serves every process of a session. `client.services` calls the package on
the client, and `acceptor.session` loads it in the acceptor.
"""
