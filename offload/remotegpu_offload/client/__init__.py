"""The program's half of a session: it opens one, reaches an acceptor, and moves to another one.

`session` is the only session of a process. `places` chooses the acceptor (pure), `connect` reaches it, and `moving`
changes it; `services` answers the acceptor's requests, and `control` those of the user's other programs. Used by all
modes. It must not know torch or calls: they register as parts of the session.
"""
