"""One of the modules."""

VALUE = 1
