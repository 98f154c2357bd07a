"""Functions whose results are as large as they are asked for."""

import numpy as np


def lower(limit):
    """Less than the wire's limit, or a test would need gigabytes."""
    from remotegpu_offload.objects import pages

    pages.LARGEST = limit


def ones(count):
    return np.ones(count)


def size(value):
    return value.size


def grow(things, count):
    things.append(np.ones(count))


def several(count):
    yield 1
    for _ in range(3):
        yield np.ones(count)


def offer(function, count):
    return function(np.ones(count))


def fetch(function):
    return function().size
