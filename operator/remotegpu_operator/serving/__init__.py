"""HTTP servers beside the operator's loop: connections that anybody may open, probes, and a thread for a server.

Called by the operator, the webhook and the dashboard. It knows nothing of what they serve.
"""
