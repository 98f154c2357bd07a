"""The names that both sides use for the program's main module, and the names of modules that are never sent."""

import os
from typing import Final

import remotegpu
import remotegpu_offload

# The name of the client's `__main__` in the acceptor: `if __name__ == "__main__":` is not run there.
MAIN_ALIAS: Final = "__remotegpu_main__"

OWN_FOLDERS: Final = tuple(os.path.dirname(package.__file__ or "") for package in (remotegpu, remotegpu_offload))


def is_ours(name: str) -> bool:
    """Returns whether a module belongs to this project's packages: each side runs its own, and never sends them."""
    return name.partition(".")[0] in remotegpu_offload.OURS


def own_place(path: str) -> bool:
    """Returns whether a path belongs to this project's packages on this machine, even inside a folder of the client."""
    return any(path == folder or path.startswith(folder + "/") for folder in OWN_FOLDERS)
