"""Shares of GPUs as this appliance counts them: requests, claims, GPUs of leases, grants of sessions, device views.

`allocation` chooses the GPUs of a lease, `grants` says how much memory a session may map, `asks` and `claims` read what
is wanted. Called by leases, sessions and claims. Pure: no I/O, no clock, and no knowledge of callers.
"""
