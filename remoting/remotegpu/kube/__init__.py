"""Reading a Kubernetes cluster: the objects of one kind, listed and watched.

Appliance and device plugin use it; the operator has a client of its own, which also writes. It knows nothing of claims
and pools: `remotegpu.api` has their types.
"""
