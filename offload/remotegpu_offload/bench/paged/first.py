"""A module of the benchmark: sums the numbers of two others."""

from .deep import one, two

VALUE = one.VALUE + two.VALUE
