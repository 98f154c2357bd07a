"""The command `remotegpu bench turns`: measures the cost and the precision of dividing a GPU's time."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rich.table import Table

from remotegpu.api.quantities import Ask
from remotegpu.cli import exits
from remotegpu.cli.bench.lab import on_cpus
from remotegpu.cli.output import console, print_json
from remotegpu.cli.run.local import local_appliance
from remotegpu.paths import find_dist

_SECONDS: Final = 10.0
_QUICK_SECONDS: Final = 3.0


@dataclass(frozen=True, slots=True)
class Tenant:
    share: str
    options: tuple[str, ...] = ()
    idle: bool = False  # it has a session but launches no kernel


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    mode: str
    tenants: tuple[Tenant, ...]


_LIMITED: Final = Tenant("0.25", ("--compute-limit", "0.5"))
CASES: Final = (
    Case("shared, alone", "shared", (Tenant("0.5"),)),
    Case("turns, alone", "turns", (Tenant("0.5"),)),
    Case("turns, beside an idle one", "turns", (Tenant("0.5"), Tenant("0.25", idle=True))),
    Case("turns, at most 0.5", "turns", (_LIMITED,)),
    Case("shared, 0.75 and 0.25", "shared", (Tenant("0.75"), Tenant("0.25"))),
    Case("turns, 0.75 and 0.25", "turns", (Tenant("0.75"), Tenant("0.25"))),
    Case("turns, four of 0.25", "turns", (Tenant("0.25"),) * 4),
)


def bench(*, quick: bool, as_json: bool) -> None:
    """Measures and prints each tenant's kernels per second. The software GPU runs alone on the last CPU."""
    find_dist()
    seconds = _QUICK_SECONDS if quick else _SECONDS
    results = {case.name: _measure(case, seconds) for case in CASES}
    alone = results[CASES[0].name][0]
    if as_json:
        print_json({"seconds": seconds, "kernels_per_second": results})
        return
    table = Table("", "kernels/s of each", "of all, to alone", box=None, pad_edge=False)
    for name, rates in results.items():
        table.add_row(name, ", ".join(f"{rate:.0f}" for rate in rates), f"{sum(rates) / alone:.3f}")
    console().print(table)


def _measure(case: Case, seconds: float) -> list[float]:
    """Returns the kernels per second of each tenant that is not idle."""
    cpus = sorted(os.sched_getaffinity(0))
    with contextlib.ExitStack() as stack:
        with on_cpus({cpus[-1]}):
            options = ("--compute-mode", case.mode, "--threads", "1")
            endpoint = stack.enter_context(local_appliance(Ask(), *options))
        with on_cpus(set(cpus[:-1]) or {cpus[-1]}):
            programs = [stack.enter_context(_started(endpoint, tenant, seconds)) for tenant in case.tenants]
        for program in programs:
            _line(program)
        busy = [program for program, tenant in zip(programs, case.tenants, strict=True) if not tenant.idle]
        for program in busy:
            assert program.stdin is not None
            program.stdin.write("\n")
            program.stdin.flush()
        return [int(_line(program)) / seconds for program in busy]


@contextlib.contextmanager
def _started(endpoint: str, tenant: Tenant, seconds: float) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "remotegpu.cli", "run", "--appliance", endpoint, "-p", tenant.share]
    command += [*tenant.options, "--", "remotegpu-bench", "backlog", str(seconds)]
    program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield program
    finally:
        program.terminate()
        program.communicate()


def _line(program: subprocess.Popen[str]) -> str:
    assert program.stdout is not None
    line = program.stdout.readline().strip()
    if not line:
        raise exits.CliError(exits.SOFTWARE, f"{_words(program.args)} ended early, see above")
    return line


def _words(arguments: object) -> str:
    return " ".join(map(str, arguments)) if isinstance(arguments, Sequence) else str(arguments)
