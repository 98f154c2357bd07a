"""Measures calls of an empty function in function mode: `python calls.py [--calls N] [--mib N]`.

Prints the median time of a call in us, and the rate in MB/s of a large argument that is new to the acceptor. The
configuration offloads `__main__.nothing`.
"""

import argparse
import json
import os
import statistics
import time


def nothing(value: object) -> int:
    """Returns only the size of the value: returning the value would send it back."""
    return len(value) if isinstance(value, bytes) else 0


def seconds(value: object) -> float:
    """Returns the seconds of one call."""
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
