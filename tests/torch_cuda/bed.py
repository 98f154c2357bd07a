"""Programs of the torch bed (`make torch-bed`) natively and on a share, and what they print."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from support.system import REMOTEGPU, ROOT, appliance

PYTHON: Final = ROOT / "target" / "torch-bed" / "python3"
PROGRAMS: Final = Path(__file__).parent / "programs"
SHARE: Final = "0.25"
# As a software GPU of `remotegpu run --native` has.
MEMORY_MIB: Final = 8192
# One thread adds up in one order, so that bits can be compared.
ENVIRONMENT: Final = {
    "REMOTEGPU_SOFTGPU_THREADS": "1",
    "PYTHONPATH": str(ROOT / "tests" / "libraries" / "programs"),
    "PYTHONDONTWRITEBYTECODE": "1",
}


def cases_of(program: str) -> list[str]:
    """A program's cases: its functions without parameters that yield values."""
    text = (PROGRAMS / program).read_text()
    return re.findall(r"^def ([a-z]\w*)\(\) -> Iterator\[Value\]:$", text, re.MULTILINE)


def run(
    where: Sequence[str], program: str, arguments: Sequence[str], seconds: float, environment: Mapping[str, str] = {}
) -> list[dict[str, Any]]:
    """The lines of JSON that the program printed; one that ends in another way fails with what it said."""
    assert PYTHON.exists(), f"{PYTHON} is not there: make torch-bed"
    command = [REMOTEGPU, "run", *where, "-p", SHARE, "--", str(PYTHON), str(PROGRAMS / program), *arguments]
    own = os.environ | ENVIRONMENT | dict(environment)
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=own, check=False)
    assert done.returncode == 0, f"{program} ended with {done.returncode}: {done.stderr[-2000:]}"
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]


@contextmanager
def share() -> Iterator[list[str]]:
    """The options for a share of an appliance whose GPU computes with one thread."""
    before = {name: os.environ.get(name) for name in ENVIRONMENT if name.startswith("REMOTEGPU_")}
    os.environ.update({name: ENVIRONMENT[name] for name in before})
    try:
        with appliance(memory_mib=MEMORY_MIB) as it:
            yield ["--appliance", it.endpoint]
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


@functools.cache
def both(program: str, arguments: tuple[str, ...], seconds: float) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Runs it natively and on a share."""
    native = run(["--native"], program, arguments, seconds)
    with share() as where:
        return native, run(where, program, arguments, seconds)
