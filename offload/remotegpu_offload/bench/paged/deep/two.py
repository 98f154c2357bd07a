"""One of the modules."""

VALUE = 2
