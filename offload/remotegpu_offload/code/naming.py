"""The names under which both sides know the program's main module, and those that never travel."""

from typing import Final

# What `__main__` of the client is called in the acceptor: `if __name__ == "__main__":` is not run there.
MAIN_ALIAS: Final = "__remotegpu_main__"

_OURS: Final = __name__.partition(".")[0]


def is_ours(name: str) -> bool:
    """Whether a module is part of this package: each side runs its own, which is never paged."""
    return name.partition(".")[0] == _OURS
