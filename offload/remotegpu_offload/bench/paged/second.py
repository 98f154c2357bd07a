"""A module of the benchmark: sums the numbers of two others."""

from .deep import three, two

VALUE = two.VALUE + three.VALUE
