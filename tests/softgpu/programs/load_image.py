"""Loads an image as a module and as a library; prints the codes as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from softcuda import code, ptr, ref, start

image = Path(sys.argv[1]).read_bytes()
start()
library = ptr()
codes = {
    "module": code("cuModuleLoadData", ref(ptr()), image),
    "library": code("cuLibraryLoadData", ref(library), image, None, None, 0, None, None, 0),
    "kernel": code("cuLibraryGetKernel", ref(ptr()), library, b"k"),
}
print(json.dumps(codes))
