"""One of the modules."""
