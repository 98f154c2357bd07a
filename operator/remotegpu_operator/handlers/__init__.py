"""Handlers: one file per kind, thin. They call pure functions and write what these return."""
