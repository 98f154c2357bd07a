"""Sessions: one client process, one worker or acceptor process each.

A session takes its memory from what its lease has been granted (`shares.grants`), shares memory with other sessions
(`exports`), and gives it back (`returns`). `state` has the records of leases and sessions; `budgets` and `memory_watch`
say and enforce what each may hold of the machine. Called by leases, claims and moves, which it does not know.
"""
