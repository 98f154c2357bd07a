"""Less usual members of a user's module."""

import asyncio
import contextlib
import functools
import os
import re


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


log = []


@contextlib.contextmanager
def opened(name, swallow=None):
    log.append(f"enter {name}")
    try:
        yield {"name": name, "pid": os.getpid()}
    except LookupError as error:
        log.append(f"caught {error!r}")
        if swallow is None:
            raise ValueError("from there") from error
        if not swallow:
            raise
    finally:
        log.append(f"exit {name}")


@contextlib.asynccontextmanager
async def slowly(name):
    await asyncio.sleep(0)
    log.append(f"enter {name}")
    try:
        yield name.upper()
    finally:
        log.append(f"exit {name}")


def told():
    found = list(log)
    log.clear()
    return found


class Door:
    def __init__(self):
        self.is_open = False

    def __enter__(self):
        self.is_open = True
        return self

    def __exit__(self, kind, error, trace):
        self.is_open = False
        return kind is KeyError


def door():
    return Door()


def is_open(door):
    return door.is_open


def within(manager, error=None):
    with manager as value:
        if error is not None:
            raise error
        return value


@functools.lru_cache(maxsize=3)
def cached(x):
    return x * 2


def pattern(text, flags=0):
    return re.compile(text, flags)
