"""Runs the cases of a program; for each that passes, a line with its name and a digest of what it returned."""

from __future__ import annotations

import hashlib
import sys
import time
import traceback
from collections.abc import Callable, Mapping

import numpy as np

Case = Callable[[], object]


def host_array(result: object) -> np.ndarray:
    """The bits of an array of NumPy or CuPy, of a number, or of a tensor, whose type NumPy may not have."""
    if hasattr(result, "untyped_storage"):
        return result.cpu().contiguous().view(sys.modules["torch"].uint8).numpy()
    return np.ascontiguousarray(result.get() if hasattr(result, "get") else result)


def digest(results: object) -> str:
    """Two runs that computed the same bits print the same."""
    total = hashlib.sha256()
    for result in results or ():
        array = host_array(result)
        total.update(f"{array.dtype}{array.shape}".encode())
        total.update(array.tobytes())
    return total.hexdigest()[:16]


def main(program: Mapping[str, object]) -> None:
    """The cases are the program's public functions without parameters, or those named on the command line."""
    for name in sys.argv[1:]:
        case = program[name]
        assert callable(case)
        start = time.monotonic()
        try:
            results = case()
        except Exception:
            print(f"--- {name}", file=sys.stderr)
            traceback.print_exc()
        else:
            print(name, digest(results), flush=True)
            print(f"--- {name}: {time.monotonic() - start:.1f} s", file=sys.stderr, flush=True)
