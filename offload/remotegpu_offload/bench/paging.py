"""A package of eleven modules is imported in the acceptor (program mode). Prints seconds and the number of modules."""

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
