"""A module of the benchmark: holds a number."""

VALUE = 5
