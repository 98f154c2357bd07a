"""Tells users of kernels in acceptors, which are gone, what to do. It goes with the next release.

Kernelspecs of the release before start this in place of a kernel.
"""

import sys
from typing import Final

UNAVAILABLE: Final = 69
GONE: Final = (
    "remotegpu: kernels that run in an acceptor are gone: start Jupyter with `remotegpu run -- jupyter lab`, and put "
    "%%offload at the top of the cells that are to run elsewhere; `jupyter kernelspec remove NAME` removes this one"
)


def main() -> int:
    print(GONE, file=sys.stderr)  # noqa: T201
    return UNAVAILABLE
