"""Runs the named cases of a program; for each that passes, a line with its name and a digest of what it returned."""

from __future__ import annotations

import hashlib
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping

import torch

Case = Callable[[], "Iterable[torch.Tensor] | None"]


def main(cases: Mapping[str, object]) -> None:
    for name in sys.argv[1:]:
        case = cases[name]
        assert callable(case)
        start = time.monotonic()
        try:
            results = case()
        except Exception:
            print(f"--- {name}", file=sys.stderr)
            traceback.print_exc()
            continue
        digest = hashlib.sha256()
        for tensor in results or ():
            digest.update(tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes())
        print(name, digest.hexdigest()[:16], flush=True)
        print(f"--- {name}: {time.monotonic() - start:.1f} s", file=sys.stderr, flush=True)
