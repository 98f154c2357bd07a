"""The names under which both sides know the program's main module, and those that never travel."""

import os
from typing import Final

import remotegpu
import remotegpu_offload

# What `__main__` of the client is called in the acceptor: `if __name__ == "__main__":` is not run there.
MAIN_ALIAS: Final = "__remotegpu_main__"

OWN_FOLDERS: Final = tuple(os.path.dirname(package.__file__ or "") for package in (remotegpu, remotegpu_offload))


def is_ours(name: str) -> bool:
    """Whether a module is part of our packages: each side runs its own, which is never paged."""
    return name.partition(".")[0] in remotegpu_offload.OURS


def own_place(path: str) -> bool:
    """Whether a file or folder is of our packages: it is this machine's, even where the client serves those around."""
    return any(path == folder or path.startswith(folder + "/") for folder in OWN_FOLDERS)
