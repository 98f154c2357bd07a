"""Names the replacement for kernels in acceptors, which were removed. The next release removes this module.

Kernelspecs that the previous release installed start this module instead of a kernel.
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
