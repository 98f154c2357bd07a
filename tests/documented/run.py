"""Runs rows, each to its own verdict: `python -m documented.run GROUP [--broken]`.

GROUP is a kind, or `alone`: rows that leave the process as others could not use it, a forked process for each. With
`--broken` each row is run with the driver that breaks its rule, in a forked process, since nobody knows what is left.
A line for each row: its number in the table, `holds` or `fails`, and why.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

from documented.driver import Library, Machine
from documented.row import Row
from documented.rows import ROWS


def machine() -> Machine:
    cuda, nvml = Library("libcuda.so.1"), Library("libnvidia-ml.so.1")
    made = Machine(cuda, nvml)
    assert cuda.cuInit(0) == 0
    assert nvml.nvmlInit_v2() == 0
    made.context = made.made("cuDevicePrimaryCtxRetain", 0)
    made.ok("cuCtxSetCurrent", made.context)
    return made


def verdict(row: Row, m: Machine) -> str:
    try:
        row.check(m)
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(where.filename).name}:{where.lineno}"
        return " ".join(f"fails {type(error).__name__}: {error} ({place})".split())
    finally:
        m.kept.clear()
    return "holds"


def in_child(number: int, work: Callable[[], str]) -> None:
    child = os.fork()
    if child == 0:
        try:
            print(number, work(), flush=True)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    if status:
        print(number, f"fails the process ended with {os.waitstatus_to_exitcode(status)}", flush=True)


def broken_verdict(row: Row) -> str:
    m = machine()
    m.patience = 0.3  # The call waits now, and would all the time.
    real = {"cuda": m.cuda, "nvml": m.nvml}
    for name, instead in row.broken.items():
        kind = "nvml" if name.startswith("nvml") else "cuda"
        setattr(m, kind, real[kind].with_broken({**getattr(m, kind)._broken, name: instead}))
    return verdict(row, m)


def _belongs(row: Row, group: str) -> bool:
    return row.alone if group == "alone" else row.kind == group and not row.alone


def main(group: str, broken: bool) -> None:
    rows = [(number, row) for number, row in enumerate(ROWS) if _belongs(row, group)]
    if broken or group == "alone":
        for number, row in rows:
            in_child(number, partial(broken_verdict, row) if broken else partial(_on_its_own, row))
        return
    m = machine()
    for number, row in rows:
        print(number, verdict(row, m), flush=True)
    # Streams that a failed row holds must not hold the end.
    os._exit(0)


def _on_its_own(row: Row) -> str:
    return verdict(row, machine())


if __name__ == "__main__":
    main(sys.argv[1], "--broken" in sys.argv[2:])
