"""llama.cpp's own test of its operations, CUDA against the CPU, by operation, and what became of each case."""

from __future__ import annotations

import csv
import os
import re
import select
import subprocess
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import Final

from llama_cpp.decoding import native_command, program

# Operations in a row that CUDA joins, which the list of cases does not have.
JOINED: Final = (
    "ADD_ADD", "ADD_RMS_NORM", "GATED_DELTA_NET_CACHE_FUSION", "GROUP_NORM_MUL_ADD", "L2_NORM_BATCH",
    "MOE_REDUCE", "MUL_MAT_VEC_FUSION", "NORM_MUL_ADD", "RELU_SQR", "RMS_NORM_MUL_ADD", "RMS_NORM_MUL_ROPE",
    "ROPE_SET_ROWS", "SNAKE_FUSE", "SOFTCAP", "SSM_CONV_BIAS_SILU", "SSM_SCAN_ROLLBACK", "TOPK_MOE", "TOPK_QSA",
)  # fmt: skip
PASSED, FAILED, REFUSED, SLOW, ENDED = "passed", "failed", "not supported", "not done in time", "ended the program"
CASE: Final = re.compile(r"^\s*(\w+)\((.*)\): (.*)$")
WORDS: Final = {"OK": PASSED, "FAIL": FAILED, "not supported": REFUSED}
# As many cases as one pattern may name.
PATTERNS: Final = 100


@dataclass(frozen=True)
class Outcome:
    operation: str
    case: str
    what: str
    seconds: float
    said: str = ""


def supported() -> dict[str, list[str]]:
    """Returns the cases of each operation that CUDA supports, which is told without running them."""
    command = native_command(program("test-backend-ops"), "support", "-b", "CUDA0", "--output", "csv")
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found: dict[str, list[str]] = {}
    for row in csv.DictReader(told.splitlines()):
        if row["supported"] == "1":
            found.setdefault(row["op_name"], []).append(row["op_params"])
    # Some cases are there twice.
    return {operation: list(dict.fromkeys(cases)) for operation, cases in found.items()}


def part(cases: list[str], most: int) -> list[str]:
    """Returns at most so many of them, evenly apart."""
    return [cases[at * len(cases) // most] for at in range(most)] if len(cases) > most else cases


def outcomes(operation: str, cases: Iterable[str], seconds: float) -> Iterator[Outcome]:
    """Runs the cases; one that takes longer, or ends the program, is noted, and the next one follows."""
    left = list(cases)
    while left:
        now = left[:PATTERNS]
        pattern = "^(" + "|".join(re.escape(case).replace("\\-", "-").replace("\\ ", " ") for case in now) + ")$"
        last = Outcome(operation, "", PASSED, 0)
        for last in _run(operation, ("-p", pattern), seconds):
            if last.case in now:
                now.remove(last.case)
                left.remove(last.case)
                yield last
        if now and last.what in (SLOW, ENDED):
            yield Outcome(operation, now[0], last.what, last.seconds, last.said)
            left.remove(now[0])
        elif now:
            raise AssertionError(f"{operation}: the program ran none of {now}")


def all_outcomes(operation: str, seconds: float) -> Iterator[Outcome]:
    """Runs all cases of an operation. What follows a case that takes longer, or ends the program, is not run."""
    yield from _run(operation, (), seconds)


def _run(operation: str, more: tuple[str, ...], seconds: float) -> Iterator[Outcome]:
    """Yields what the program says of each case; if it does not come to its end, a last outcome without a case."""
    command = native_command(program("test-backend-ops"), "test", "-b", "CUDA0", "-o", operation, *more)
    with TemporaryFile() as errors, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors) as process:
        begun, last = time.monotonic(), ""
        try:
            for line in _lines(process, seconds):
                last = line.strip() or last
                found = CASE.match(line)
                if found and found[1] == operation:
                    word = next((WORDS[word] for word in WORDS if word in found[3]), FAILED)
                    took, begun = time.monotonic() - begun, time.monotonic()
                    yield Outcome(operation, found[2], word, took, found[3] if word == FAILED else "")
        except TimeoutError:
            yield Outcome(operation, "", SLOW, seconds)
            return
        if not re.search(r"backends passed|^OK|^FAIL", last):
            errors.seek(0)
            said = errors.read().decode(errors="replace").strip()[-400:]
            yield Outcome(operation, "", ENDED, time.monotonic() - begun, said)


def _lines(process: subprocess.Popen[bytes], seconds: float) -> Iterator[str]:
    """Yields its lines without colours. Kills it when it says nothing for so long."""
    assert process.stdout is not None
    pipe, rest = process.stdout.fileno(), b""
    while True:
        if not select.select([pipe], [], [], seconds)[0]:
            process.kill()
            raise TimeoutError
        had = os.read(pipe, 1 << 16)
        *lines, rest = (rest + had).split(b"\n")
        for line in lines:
            yield re.sub("\x1b\\[[0-9;]*m", "", line.decode(errors="replace"))
        if not had:
            return
