"""Sessions: one client process, one worker or acceptor process each.

A session takes its memory from its lease's grants (`shares.grants`), shares memory with other sessions (`exports`), and
gives it back (`returns`). `state` has the records of leases and sessions; `budgets` and `memory_watch` define and
enforce the limits for memory of the machine. Called by leases, claims and moves, which it does not know.
"""
