"""Runs cases of libraries from the package index, and compares their values with the CPU's.

It has the table of libraries, one run of their cases, and the format of results. A case passes only with right values.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import os
import re
import signal
import subprocess
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from support.system import CROWDED, REMOTEGPU, Watch, appliance

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "tests" / "libraries"
PROGRAMS: Final = FOLDER / "programs"
REQUIREMENTS: Final = FOLDER / "requirements"
TABLE: Final = FOLDER / "libraries.toml"
VENVS: Final = ROOT / "target" / "libraries"
SHARE: Final = "0.25"
# The memory of a software GPU of `remotegpu run --native`.
MEMORY_MIB: Final = 8192
# Separate caches for each run, so that a kernel compiled natively is compiled again on the share.
CACHES: Final = {
    "CUDA_CACHE_PATH": "cuda",
    "CUPY_CACHE_DIR": "cupy",
    "NUMBA_CACHE_DIR": "numba",
    "WARP_CACHE_PATH": "warp",
    "XDG_CACHE_HOME": "others",
}


@dataclass(frozen=True, slots=True)
class Library:
    name: str
    package: str
    programs: tuple[str, ...]
    seconds: int
    # The shard of CI; empty: only `make test-all` runs the library.
    shard: str = ""
    venv: str = ""
    alone: bool = False
    gives: str = ""
    # Variables that a user must set too, before `filled` completes them. The page shows them completed.
    environment: Mapping[str, str] = field(default_factory=dict)
    # By case: the cause of a known failure, which ends with its issue.
    due: Mapping[str, str] = field(default_factory=dict)
    # By case: the reason why its right values differ in their bits from run to run.
    differs: Mapping[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return VENVS / (self.venv or self.name)

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def version(self) -> str:
        text = (REQUIREMENTS / f"{self.venv or self.name}.txt").read_text()
        return dict(line.split("==") for line in text.splitlines() if "==" in line)[self.package]

    def cases(self) -> dict[str, str]:
        """Returns the program of each case, in the order of the programs."""
        return {case: program for program in self.programs for case in cases_of(PROGRAMS / program)}

    def longest(self) -> float:
        """Returns the time limit in seconds of all cases, natively and on a share, on a loaded machine."""
        processes = len(self.cases()) if self.alone else len(self.programs) + len(self.due)
        return CROWDED * self.seconds * 2 * processes


def filled(environment: Mapping[str, str], venv: Path) -> dict[str, str]:
    """Returns the variables with the values of `{venv}`, `{folder}` and `{path}` filled in."""
    return {
        variable: value.format(venv=venv, folder=FOLDER, path=os.environ["PATH"])
        for variable, value in environment.items()
    }


def cases_of(program: Path) -> list[str]:
    """Returns the cases of a program: its functions without parameters that yield values."""
    return re.findall(r"^def ([a-z]\w*)\(\) -> Iterator\[Value\]:$", program.read_text(), re.MULTILINE)


def load(table: Path = TABLE) -> dict[str, Library]:
    content = tomllib.loads(table.read_text())
    return {each["name"]: Library(**each | {"programs": tuple(each["programs"])}) for each in content["library"]}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a case, natively or on a share. If `failed` is empty, the values were right."""

    failed: str = ""
    error: float = 0.0
    sha256: str = ""


def run(library: Library, where: Sequence[str], cases: Sequence[str]) -> dict[str, Outcome]:
    """Runs cases and returns their outcomes. The cause of a case without a result is the end of stderr."""
    programs = library.cases()
    if library.alone:
        groups = [[case] for case in cases]
    else:
        groups = [[case for case in cases if programs[case] == program] for program in library.programs]
    found: dict[str, Outcome] = {}
    for group in filter(None, groups):
        found |= _process(library, where, programs[group[0]], group)
    return found


@dataclass(frozen=True, slots=True)
class Running:
    """A program of a venv under `remotegpu run`, and the files of its standard streams."""

    process: subprocess.Popen[bytes]
    stdout: Path
    stderr: Path


@contextlib.contextmanager
def started(
    where: Sequence[str],
    command: Sequence[str],
    environment: Mapping[str, str],
    caches: Mapping[str, str] = CACHES,
) -> Iterator[Running]:
    """Starts a program in its own folder with its own caches. At the end, kills it and all that it started."""
    with tempfile.TemporaryDirectory() as folder:
        own = {variable: f"{folder}/{name}" for variable, name in caches.items()}
        out, err = Path(folder) / "stdout", Path(folder) / "stderr"
        with out.open("w") as stdout, err.open("w") as stderr:
            process = subprocess.Popen(
                [REMOTEGPU, "run", *where, "-p", SHARE, "--", *command],
                stdout=stdout, stderr=stderr, env=os.environ | own | dict(environment), cwd=folder,
                start_new_session=True,
            )  # fmt: skip
        try:
            yield Running(process, out, err)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def output(
    library: Library,
    where: Sequence[str],
    program: str,
    cases: Sequence[str],
    environment: Mapping[str, str] = MappingProxyType({}),
) -> tuple[str, str, str]:
    """Runs cases of a program. Returns stdout, stderr and a text about the end of the process."""
    command = [str(library.python), str(PROGRAMS / program), *cases]
    with started(where, command, {**filled(library.environment, library.folder), **environment}) as running:
        watch, process = Watch(), running.process
        while process.poll() is None and watch.within(library.seconds):
            time.sleep(0.05)
        ended = f"had not ended after {library.seconds} s" if process.poll() is None else f"ended with {process.poll()}"
        return running.stdout.read_text(), running.stderr.read_text(), ended


def _process(library: Library, where: Sequence[str], program: str, cases: Sequence[str]) -> dict[str, Outcome]:
    results, said, ended = output(library, where, program, cases)
    found = {}
    for line in results.splitlines():
        if line.startswith('{"case"'):
            result = json.loads(line)
            outcome = Outcome(result.get("failed", ""), result.get("error", 0.0), result.get("sha256", ""))
            found[result["case"]] = outcome
    cause = f"the process {ended}: {last_words(said)}"
    return {case: found.get(case, Outcome(failed=cause)) for case in cases}


def last_words(stderr: str) -> str:
    """Returns up to three lines of remotegpu in an output; without such lines, the last line."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip() and not line.startswith("---")]
    ours = list(dict.fromkeys(line for line in lines if line.startswith("remotegpu:")))
    return " ".join(" / ".join(ours[:3] or lines[-1:] or ["it said nothing"]).split())[:400]


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the page of libraries, and the format of the file of results."""

    library: str
    version: str
    # The number of cases, and of those that were right natively and on a share.
    cases: int
    native: int
    share: int
    # The largest difference from the CPU, relative to the largest value.
    error: float
    # The number of cases that were right both ways and had the same bits.
    same_bits: int
    # By case: "natively", "on a share" or "natively and on a share", and the cause.
    failed: Mapping[str, tuple[str, str]]
    date: str


def row(library: Library, native: Mapping[str, Outcome], share: Mapping[str, Outcome]) -> Row:
    right = [case for case in native if not native[case].failed and not share[case].failed]
    failed = {}
    for case in native:
        ways = [way for way, of in (("natively", native), ("on a share", share)) if of[case].failed]
        if ways:
            failed[case] = (" and ".join(ways), native[case].failed or share[case].failed)
    return Row(
        library.name, library.version(), len(native),
        sum(not each.failed for each in native.values()), sum(not each.failed for each in share.values()),
        max((max(native[case].error, share[case].error) for case in right), default=0.0),
        sum(native[case].sha256 == share[case].sha256 for case in right), failed,
        datetime.datetime.now(datetime.UTC).date().isoformat(),
    )  # fmt: skip


@functools.cache
def both(name: str) -> dict[str, dict[str, Outcome]]:
    """Runs a library's cases natively and on a share. A case with a known failure runs in a process of its own."""
    library = load()[name]
    ready = [case for case in library.cases() if case not in library.due]

    def all_of(*where: str) -> dict[str, Outcome]:
        found = run(library, where, ready)
        for case in library.due:
            found |= run(library, where, [case])
        return {case: found[case] for case in library.cases()}

    native = all_of("--native")
    with appliance(memory_mib=MEMORY_MIB) as it:
        return {"native": native, "share": all_of("--appliance", it.endpoint)}
