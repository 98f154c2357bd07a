"""One of the modules."""

VALUE = 5
