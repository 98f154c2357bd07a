"""One of the modules."""

from .deep import three, two

VALUE = two.VALUE + three.VALUE
