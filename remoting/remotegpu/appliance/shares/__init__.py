"""Shares of GPUs as this appliance counts them: requests, claims, GPUs of leases, grants of sessions, device views.

Called by leases, sessions and claims. Pure: no I/O, no clock, and no knowledge of callers.
"""
