"""The API server: reads and writes with deadlines, watched objects, events, the Lease, and retries.

Called by everything here that reads or writes an object. No write happens without the Lease (`leadership`). It knows
Kubernetes, and nothing of GPUs.
"""
