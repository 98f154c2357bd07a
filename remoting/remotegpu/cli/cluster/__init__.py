"""Commands about a cluster: its claims, its appliances, waiting claims and why they wait, and usage.

`objects` reads the API server with the user's own rights. Only `why` imports the operator's package.
"""
