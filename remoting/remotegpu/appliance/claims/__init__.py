"""Leases in Kubernetes: kept in line with the claims, for pods that authenticate.

Only `kubernetes` speaks to the API server. `reviews` caches token reviews. Called by the start of the appliance and by
moves.
"""
