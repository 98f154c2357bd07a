"""Calls of a function that does nothing, __main__.nothing (function mode): `python calls.py [--calls N] [--mib N]`.

Prints the median time of a call in us, and MB/s of a large argument that the acceptor has not seen.
"""

import argparse
import json
import os
import statistics
import time


def nothing(value: object) -> int:
    """Returns how large the value is; not the value, which would come back."""
    return len(value) if isinstance(value, bytes) else 0


def seconds(value: object) -> float:
    """Measures the seconds of one call."""
    began = time.perf_counter()
    nothing(value)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--mib", type=int, default=32)
    options = parser.parse_args()
    for _ in range(20):
        seconds(1)
    call = statistics.median(seconds(1) for _ in range(options.calls))
    size = options.mib << 20
    rates = [size / seconds(os.urandom(size)) / 1e6 for _ in range(3)]
    print(json.dumps({"call_us": call * 1e6, "argument_mbps": statistics.median(rates)}))  # noqa: T201


if __name__ == "__main__":
    main()
