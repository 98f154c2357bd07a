"""One of the modules."""

from .deep import one, two

VALUE = one.VALUE + two.VALUE
