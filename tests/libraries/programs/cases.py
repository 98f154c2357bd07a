"""Runs the cases of a library's program. Each case gives a line of JSON: its name, and either its error against the CPU
and the SHA-256 of its results, or the cause for which it failed.

A case is a public function without parameters. It yields a `Value` for each result that it compares.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Value:
    """A result of the GPU, with the CPU's. `within` bounds the greatest difference, in units of the greatest value."""

    got: object
    want: object
    within: float = 0.0

    def error(self) -> float:
        got, want = np.asarray(self.got), np.asarray(self.want)
        if got.shape != want.shape:
            raise AssertionError(f"the GPU gave an array of {got.shape}, the CPU one of {want.shape}")
        if got.dtype.kind in "biuSU" and want.dtype.kind in "biuSU":
            return float(np.count_nonzero(got != want))
        if got.size == 0:
            return 0.0
        kind = np.complex128 if "c" in got.dtype.kind + want.dtype.kind else np.float64
        difference = np.abs(got.astype(kind) - want.astype(kind))
        if not np.isfinite(difference).all():
            return float("inf")
        return float(difference.max() / max(1.0, np.abs(want).max()))


Case = Callable[[], Iterator[Value]]


def outcome(case: Case) -> dict[str, object]:
    """Compares all values of a case, also those after a wrong one: how many are wrong tells more than that one is."""
    digest, worst, wrong, count = hashlib.sha256(), 0.0, 0, 0
    for value in case():
        error = value.error()
        worst, wrong, count = max(worst, error), wrong + (error > value.within), count + 1
        array = np.ascontiguousarray(np.asarray(value.got))
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(array.tobytes())
    if count == 0:
        return {"failed": "it compared nothing"}
    if wrong:
        return {"failed": f"{wrong} of {count} values are wrong, by {worst:.2g} at most", "wrong": wrong, "of": count}
    return {"error": worst, "sha256": digest.hexdigest()}


def main(program: Mapping[str, object]) -> None:
    """Runs the cases that the command line names."""
    for name in sys.argv[1:]:
        case = program[name]
        assert callable(case)
        start = time.monotonic()
        try:
            result = outcome(case)
        except Exception as problem:
            traceback.print_exc()
            text = " ".join(str(problem).split())
            result = {"failed": f"{type(problem).__name__}: {text}"[:400]}
        print(json.dumps({"case": name} | result), flush=True)
        print(f"--- {name}: {time.monotonic() - start:.1f} s", file=sys.stderr, flush=True)
