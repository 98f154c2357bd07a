"""Measures reading a file of the client in program mode: `python reading.py FILE`. Prints MB/s of two reads."""

import json
import sys
import time
from pathlib import Path


def rate(path: Path) -> float:
    """Returns the rate in MB/s of reading the whole file."""
    began, size = time.perf_counter(), 0
    with path.open("rb", buffering=0) as file:
        while piece := file.read(1 << 20):
            size += len(piece)
    return size / (time.perf_counter() - began) / 1e6


def main() -> None:
    path = Path(sys.argv[1])
    print(json.dumps({"file_mbps": rate(path), "file_again_mbps": rate(path)}))  # noqa: T201


if __name__ == "__main__":
    main()
