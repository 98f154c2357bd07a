"""The names under which both sides know the program's main module."""

from typing import Final

# What `__main__` of the client is called in the acceptor: `if __name__ == "__main__":` is not run there.
MAIN_ALIAS: Final = "__remotegpu_main__"
