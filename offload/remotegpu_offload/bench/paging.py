"""Measures the import of a package of eleven modules in program mode. Prints milliseconds and the number of modules."""

import importlib
import json
import sys
import time


def main() -> None:
    began = time.perf_counter()
    paged = importlib.import_module("paged")

    seconds = time.perf_counter() - began
    modules = sum(name.partition(".")[0] == "paged" for name in sys.modules)
    print(json.dumps({"import_ms": seconds * 1e3, "modules": modules, "total": paged.TOTAL}))  # noqa: T201


if __name__ == "__main__":
    main()
