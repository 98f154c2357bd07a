"""Commands about a cluster: its claims, its appliances, who waits and why, and what was used.

`objects` reads the API server with the user's own rights. The operator's package is imported by `why` alone.
"""
