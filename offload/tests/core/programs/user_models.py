"""A user's module with classes for another machine, as it may look."""

import os


class Base:
    def hook(self):
        return "base"


class Model(Base):
    """A model."""

    kind = "plain"

    def __init__(self, size, *, name="m"):
        self.size = size
        self.name = name
        self.items = list(range(size))
        self.entered = 0

    def where(self):
        return os.getpid()

    def total(self, extra=0):
        return sum(self.items) + extra

    def describe(self):
        return f"{self.hook()} {self.name} {self.total()}"

    def itself(self):
        return self

    def sibling(self):
        return Model(self.size + 1, name="sibling")

    def merge(self, other):
        self.items += other.items
        return self

    def each(self, function):
        return [function(item) for item in self.items]

    def numbers(self):
        yield from self.items

    def scale(self, array):
        array *= self.size

    def fail(self):
        raise LookupError(self.name)

    @property
    def double(self):
        return self.size * 2

    @double.setter
    def double(self, value):
        self.size = value // 2

    @classmethod
    def of(cls, text):
        return cls(int(text), name=cls.__name__)

    @staticmethod
    def pid():
        return os.getpid()

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]

    def __setitem__(self, index, value):
        self.items[index] = value

    def __delitem__(self, index):
        del self.items[index]

    def __contains__(self, item):
        return item in self.items

    def __iter__(self):
        return iter(self.items)

    def __call__(self, x):
        return self.size * x

    def __eq__(self, other):
        return isinstance(other, Model) and self.items == other.items

    def __hash__(self):
        return len(self.items)

    def __add__(self, other):
        return Model(self.size + other.size, name="sum")

    def __lt__(self, other):
        return self.size < other.size

    def __bool__(self):
        return self.size > 0

    def __repr__(self):
        return f"Model({self.size})"

    def __enter__(self):
        self.entered += 1
        return self

    def __exit__(self, kind, error, trace):
        self.entered -= 1
        return kind is KeyError


class Slim:
    __slots__ = ("a", "b")

    def __init__(self, a):
        self.a = a

    def more(self):
        return self.a + 1


class Derived(Model):
    """Defined where rules have replaced `Model` already."""

    def hook(self):
        return "derived"

    def total(self, extra=0):
        return super().total(extra) + 1000


def weigh(model):
    return model.total()


class Store:
    def __init__(self):
        self.items = [3, 1]
        self.by_name = {"a": [1]}
        self.names = {"x"}
        self.nested = [[1], [2]]

    def seen(self):
        return self.items, self.by_name, self.names, self.nested

    def change(self):
        self.items.append("there")

    def has(self, items):
        return items is self.items

    @property
    def fresh(self):
        return list(self.items)


def same_items(store, items):
    return items is store.items
