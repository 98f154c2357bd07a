"""One of the modules."""

VALUE = 3
