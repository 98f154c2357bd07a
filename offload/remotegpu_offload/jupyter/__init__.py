"""Notebooks: magics for a kernel that runs here."""
