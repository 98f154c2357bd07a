"""One of the modules."""

VALUE = 6
