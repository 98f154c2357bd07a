"""Handlers: one file per kind, thin. kopf calls them; they wake whoever has to look."""
