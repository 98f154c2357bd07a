"""Builders: manifests from a pool's or claim's state. Pure; no I/O."""
