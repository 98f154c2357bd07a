"""Objects of many kinds, made by `make_...`, and changed in place by the function of the same name."""

import array
import collections
import dataclasses
import datetime
import decimal
import io
import random

import numpy as np


class Node:
    def __init__(self, n):
        self.n = n
        self.others = []


class Tagged(list):
    pass


class Sealed(dict):
    __slots__ = ("tag",)


@dataclasses.dataclass(slots=True)
class Slim:
    n: int
    inner: list


class Counts:
    """Callable, as a model is."""

    n = 0

    def __call__(self):
        self.n += 1
        return self.n


class Opened:
    """Holds an open file and a bound method, which do not travel."""

    def __init__(self):
        self.lines = ["a"]
        self.file = io.BytesIO()
        self.log = self.lines.append

    def __getstate__(self):
        return {"lines": self.lines}

    def __setstate__(self, state):
        self.__dict__.update(state)
        self.__dict__.setdefault("file", None)


class Packed:
    """A class whose `__getstate__` returns a list, not attributes."""

    def __init__(self):
        self.inner = ["a"]
        self.n = 1

    def __getstate__(self):
        return ["version 2", self.inner, self.n]

    def __setstate__(self, state):
        _, self.inner, self.n = state


class Fixed:
    """A class that its constructor makes again; it has slots and no `__setstate__`."""

    __slots__ = ("n",)

    def __init__(self, n):
        self.n = n

    def __reduce__(self):
        return Fixed, (self.n,)


class Other(Node):
    pass


def make_tags():
    tags = Tagged([1, [2]])
    tags.tag, tags.gone = 0, 1
    return tags


def tags(x):
    x.tag = {"n": 1}
    del x.gone
    x[1].append(3)


def make_sealed():
    sealed = Sealed(a=1)
    sealed.tag = [1]
    return sealed


def sealed(x):
    x.tag.append(2)
    x["b"] = x.tag


def make_slim():
    return Slim(1, [Slim(2, [])])


def slim(x):
    x.n += 10
    x.inner[0].inner.append(x.inner[0].n)
    x.inner[0].n += 10


def make_moved():
    """Makes two objects in a list, of which one goes."""
    first, second = Node(1), Node(2)
    second.others = [first]
    return {"list": [first, second], "second": second, "when": datetime.date(2026, 1, 2), "sum": decimal.Decimal("1.5")}


def moved(x):
    x["list"][0].n = 10
    gone = x["list"].pop(0)
    x["gone"] = gone
    x["list"].append(Node(3))
    x["list"][-1].others.append(x["second"])
    x["sum"] += 1


def make_keys():
    """Makes keys that are found by identity, as an optimizer finds its parameters."""
    node, other = Node(1), Node(2)
    return [{node: {"seen": 0}}, [node, other], (node, [other]), {frozenset(("k",)): other}]


def keys(x):
    node, other = x[1]
    x[0][node]["seen"] += 1
    x[0][other] = {"seen": (other, [node])}
    x[2][1].append(node)
    node.n = 5


def make_kinds():
    return {
        "deque": collections.deque([1, [2]], 3),
        "ordered": collections.OrderedDict(a=[1], b=2),
        "default": collections.defaultdict(list, a=[1]),
        "counter": collections.Counter("aab"),
        "array": array.array("d", [1, 2]),
        "bytes": bytearray(b"abc"),
        "set": {1, 2},
        "random": random.Random(1),
        "objects": np.array([[1], None], object),
        "numbers": np.arange(4.0)[::2],
        "fixed": Fixed(3),
    }


def kinds(x):
    x["deque"].extend([3, 4])
    x["ordered"].move_to_end("a")
    x["ordered"]["a"].append(2)
    x["default"]["b"].append(5)
    x["counter"]["b"] += 3
    x["array"].append(3)
    x["bytes"] += b"d"
    x["set"] ^= {2, 3}
    x["random"].random()
    x["objects"][0].append(5)
    x["objects"][1] = x["deque"]
    x["numbers"] += 1


def make_opened():
    return Opened()


def opened(x):
    x.lines.append("b")


def make_packed():
    return Packed()


def packed(x):
    x.inner.append(x.n)
    x.n += 1


def make_counts():
    return Counts()


def counts(x):
    x()
    x.n += 1


def make_pair():
    return ([1], {"a": [2]})


def pair(x):
    x[0].append(2)
    x[1]["b"] = x[0]


def both(x, y):
    """Lets one object hold what only the other had."""
    x.others.append(y.others[0])


def give(x):
    """Returns a part of its argument, and a container with the argument and a new object."""
    x["n"] += 1
    return x["inner"], {"all": [x, Node(5)], "key": {x["node"]: x["inner"]}}


def look(x):
    return [x["node"]]


def use_up(x):
    x.n -= 1


def turn(x):
    x[0].__class__ = Other


def resize(x):
    x["a"] += [1]
    x["b"].shape = (3, 1)
