"""Reads a Kubernetes cluster: lists and watches the objects of one kind.

Appliance and device plugin use this package; the operator has a client of its own, which also writes. The package is
independent of claims and pools, whose types are in `remotegpu.api`.
"""
