"""Leases: opens, ends, resizes, suspends, resumes, drains and lists them.

A client opens a lease and holds it by a connection, or the appliance places it for a claim. `authority` checks
permissions. The control service, `claims` and `moving` call this package. It starts no process: `sessions` does.
"""
