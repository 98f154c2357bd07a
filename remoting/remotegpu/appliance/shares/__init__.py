"""The appliance's accounting of shares: requests, claims, GPUs of leases, grants of sessions, views of devices.

`allocation` chooses the GPUs of a lease, `grants` limits the memory that a session may map, `asks` and `claims` parse
requests. `leases`, `sessions` and `claims` call this package. Pure: no I/O, no clock, and no import of callers.
"""
