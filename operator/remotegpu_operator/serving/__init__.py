"""HTTP servers next to the operator's loop: connections open to anyone, probes, and a thread for a server.

Called by the operator, the webhook and the dashboard. It knows nothing of the content that they serve.
"""
