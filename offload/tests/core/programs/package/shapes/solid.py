import math

from . import kinds


class Shape:
    def __init__(self, kind):
        self.kind = kind

    @property
    def name(self):
        return f"{type(self).__name__} ({self.kind.value})"


class Circle(Shape):
    def __init__(self, radius):
        super().__init__(kinds.Kind.ROUND)
        self.radius = radius

    def area(self):
        return math.pi * self.radius**2


class Square(Shape):
    def __init__(self, side):
        super().__init__(kinds.Kind.ANGULAR)
        self.side = side

    def area(self):
        return self.side**2
