"""Shares of GPUs, as this appliance counts them: what is asked for, what a claim means, which GPUs a lease gets, how
much of them each session may map, and what the holder of a lease sees of a GPU.

Called by leases, sessions and claims. Pure: no I/O, no clock, and no knowledge of who asks or how.
"""
