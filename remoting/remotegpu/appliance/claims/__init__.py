"""Leases in Kubernetes: each claim on this appliance is a lease, for pods that authenticate by a token.

Only `kubernetes` calls the API server. `reviews` caches token reviews. The start of the appliance and `moving` call
this package.
"""
