"""One of the modules."""

VALUE = 4
