"""A class whose instances live elsewhere."""


class Counter:
    def __init__(self, start=0):
        self.count = start
        self.seen = []

    def add(self, *values):
        self.seen.extend(values)
        self.count += len(values)
        return self

    def __len__(self):
        return self.count

    def __iter__(self):
        return iter(self.seen)

    def each(self, function):
        return [function(value) for value in self.seen]
