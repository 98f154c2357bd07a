"""Code paging: the acceptor imports the user's modules from the client, which serves what the configuration allows.

`finder` is the acceptor's half and `server` the client's. `allowed` decides which modules may leave, and `sources`
finds them without importing anything. `link` serves every process of a session. Called by `client.services`, and loaded
by `acceptor.session`. The server must not send source that the configuration does not allow.
"""
