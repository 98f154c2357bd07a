from .kinds import Kind
from .solid import Circle, Square

__all__ = ["Circle", "Kind", "Square"]
