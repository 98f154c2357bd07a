"""Compares CuPy with NumPy on the same arrays, in a separate program: the environment selects the driver at start."""

import json
import statistics
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

import cupy
import numpy

ELEMENTS: Final = (100_000, 1_000_000, 10_000_000)
SIDE: Final = 512
REPEAT: Final = 7


def elementwise(xp: ModuleType, x: Any) -> Any:
    return x * xp.float32(2) + x


def reduction(_xp: ModuleType, x: Any) -> Any:
    return x.sum()


def matmul(_xp: ModuleType, x: Any) -> Any:
    return x @ x


def compare(name: str, work: Callable[[ModuleType, Any], Any], host: Any) -> dict[str, float | str]:
    """Returns the milliseconds of CuPy and NumPy, and their ratio; or the error."""
    device = cupy.asarray(host)
    try:
        numpy.testing.assert_allclose(cupy.asnumpy(work(cupy, device)), work(numpy, host), rtol=1e-4)
    # Any part of a library may be missing.
    except Exception as error:
        return {f"cupy_{name}": f"{type(error).__name__}: {error}".splitlines()[0]}

    def on_device() -> None:
        work(cupy, device)
        cupy.cuda.get_current_stream().synchronize()

    ours, theirs = _milliseconds(on_device), _milliseconds(lambda: work(numpy, host))
    return {f"cupy_{name}_ms": ours, f"numpy_{name}_ms": theirs, f"cupy_{name}_ratio": ours / theirs}


def _milliseconds(run: Callable[[], Any]) -> float:
    run()
    times = []
    for _ in range(REPEAT):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def main() -> None:
    random = numpy.random.default_rng(1)
    result: dict[str, float | str] = {}
    for count in ELEMENTS:
        host = random.random(count, dtype=numpy.float32)
        result |= compare(f"elementwise_{count}", elementwise, host)
        result |= compare(f"reduction_{count}", reduction, host)
    result |= compare(f"matmul_{SIDE}", matmul, random.random((SIDE, SIDE), dtype=numpy.float32))
    sys.stdout.write(json.dumps(result))


if __name__ == "__main__":
    main()
