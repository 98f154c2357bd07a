"""Handlers: one file per kind, thin. kopf calls them; they wake the reconciler."""
