"""A claim's life: from a pod that asks to a pod that may start, through moves, resizes and suspensions, and back.

`claims` is the loop and the only writer of a claim's status; the other files each answer one question about one claim.
What a status becomes is built in `builders`, which GPUs it gets is decided in `allocation`: both are pure. Called by
pools, which bring appliances and take them away.
"""
