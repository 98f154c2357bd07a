"""Less usual members of a user's module."""

import asyncio
import functools
import os


class Unusual:
    def __init__(self, size):
        self.size = size
        self.computed = 0

    @functools.cached_property
    def area(self):
        self.computed += 1
        return self.size * self.size

    def plus(self, other, scale=1):
        return (self.size + other) * scale

    plus_ten = functools.partialmethod(plus, 10)

    @functools.singledispatchmethod
    def kind(self, value):
        return "other"

    @kind.register
    def _(self, value: int):
        return "int"

    async def later(self, x):
        await asyncio.sleep(0)
        return self.size + x, os.getpid()

    async def each(self):
        for number in range(self.size):
            yield number


async def ticks(count):
    for number in range(count):
        told = yield number
        if told is not None:
            yield told


async def fails():
    yield 1
    raise LookupError("ended")


def opens(name):
    with open(name) as file:
        return file.read()
