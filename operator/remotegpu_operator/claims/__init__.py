"""Reconciles claims: from a pod that asks for a share to its release, with moves, resizes and suspensions between.

`claims` has the loop, and only this module writes a claim's status. Each other module handles one aspect of a claim.
`builders` builds the statuses and `allocation` chooses the GPUs; both are pure. Pools call this package when
appliances come or go.
"""
