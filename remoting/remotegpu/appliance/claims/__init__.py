"""Leases in Kubernetes: kept as the claims say, for pods that prove who they are.

`kubernetes` alone speaks to the API server. `reviews` remembers whose a token is. Called by the start of the appliance
and by moves.
"""
