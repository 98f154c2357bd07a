"""A module of the benchmark: sums the numbers of three others."""

from . import five, four, six

VALUE = four.VALUE + five.VALUE + six.VALUE
