"""A user's module with steps for another machine, as it may look."""

import contextvars
import dataclasses
import logging
import os
import sys
import warnings

import numpy as np

log = logging.getLogger("user_steps")
calls = 0


@dataclasses.dataclass
class Result:
    loss: float
    step: int = 0


class StepError(Exception):
    def __init__(self, step, *, why):
        super().__init__(step)
        self.step = step
        self.why = why


def where():
    return os.getpid()


def add(a, b=2, *rest, scale=1, **more):
    """Add them."""
    return (a + b + sum(rest) + sum(more.values())) * scale


def result(loss):
    return Result(loss, 1)


def fill(array, value=7):
    array[...] = value
    return array


def change(things, extra=None):
    things.append(len(things))
    if extra is not None:
        extra["seen"] = things[0]
        extra["inner"]["deep"] = [1]
        extra.pop("gone", None)
    return things


def advance(state):
    state.step += 1
    state.loss /= 2


def add_column(frame):
    frame["y"] = frame["x"] * 2


def boom(step):
    raise StepError(step, why="because")


def boom_within(step):
    try:
        boom(step)
    except StepError as error:
        raise ValueError("outer") from error


def hard():
    class HiddenError(Exception):
        pass

    raise HiddenError("only there")


def apply(function, *arguments):
    return function(*arguments)


def each(values, function):
    return [function(value) for value in values]


def squares(count):
    try:
        for number in range(count):
            yield number * number
    finally:
        log.warning("closed")


def same_array(count):
    buffer = np.zeros(3)
    for number in range(count):
        buffer[0] = number
        yield buffer


def echo():
    received = []
    while True:
        value = yield list(received)
        if value is None:
            return "end"
        received.append(value)


def fails_in_the_middle():
    yield 1
    yield 2
    raise KeyError("three")


def total(values):
    return sum(values)


def speak(text):
    print("out", text)
    print("err", text, file=sys.stderr)
    log.info("logged %s", text)
    warnings.warn(f"warned {text}", UserWarning, stacklevel=1)
    return text


def write_to(file, text):
    file.write(text)
    file.flush()


def read_lines(file):
    return [line.strip() for line in file]


def make_adder(n):
    return lambda x: x + n


def make_lock():
    import threading

    return threading.Lock()


def keep(model, x):
    model["n"] = model.get("n", 0) + x
    return model["n"]


def weigh(model):
    model.step += 1
    return model.step


def count_calls():
    global calls
    calls += 1
    return calls


def both(first, second):
    first[0] = 5
    return float(second[0])


def size(data):
    return len(data)


def spin(begun):
    begun()
    while True:
        for _ in range(1000):
            pass


def identity(x):
    return x


async def later(x):
    return x + 1


level = contextvars.ContextVar("level", default="none")


class Tool:
    factor = 3

    def __init__(self, n):
        self.n = n

    def times(self, x):
        return self.n * x

    @staticmethod
    def static(x):
        return (os.getpid(), x)

    @classmethod
    def of_class(cls, x):
        return (os.getpid(), cls.factor * x)
