"""The program's half of a session: opens it, connects to an acceptor, and moves to another one.

`session` holds the only session of a process. `places` chooses the acceptor (pure), `connect` connects to it, and
`moving` changes it. `services` answers the acceptor's requests, and `control` those of the user's other programs. All
modes use this package. It must not know torch or calls: these register as parts of the session.
"""
