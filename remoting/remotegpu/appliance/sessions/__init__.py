"""Sessions: each has one client process, and one worker or acceptor process.

A session takes memory from the grants of its lease (`shares.grants`), shares memory with other sessions (`exports`),
and returns it (`returns`). `state` has the records of leases and sessions. `budgets` defines the limits of the
machine's memory, and `memory_watch` enforces them. `leases`, `claims` and `moving` call this package, which does not
import them.
"""
