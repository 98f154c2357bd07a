"""A claim's life: from a pod that asks to a pod that may start, through moves, resizes and suspensions, and back.

`claims` is the loop and the only writer of a claim's status; the other files each answer one question about one claim.
`builders` builds each status, `allocation` chooses the GPUs: both are pure. Called by pools, which add and remove
appliances.
"""
