"""Leases: who has which share and until when; suspended and resumed, drained, listed.

A lease is opened by a client and held by its connection, or placed for a claim. `authority` checks permissions. Called
by the control service, claims and moves. It starts no process: sessions do.
"""
