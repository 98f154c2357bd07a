"""The program's half: the session, how it reaches an acceptor, and how it moves to another one."""
