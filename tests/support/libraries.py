"""Libraries from the package index, whose values are compared with the CPU's: their table, one run of their cases, and
the format of results. Only what computed right values is a pass.
"""

from __future__ import annotations

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from support.system import CROWDED, REMOTEGPU, Watch

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "tests" / "libraries"
PROGRAMS: Final = FOLDER / "programs"
REQUIREMENTS: Final = FOLDER / "requirements"
TABLE: Final = FOLDER / "libraries.toml"
VENVS: Final = ROOT / "target" / "libraries"
SHARE: Final = "0.25"
WAYS: Final = {"native": ("--native", "-p", SHARE), "share": ("-p", SHARE)}
# What compiled a kernel natively must not spare it on the share.
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
    # Empty: by `make test-all` alone.
    shard: str = ""
    venv: str = ""
    alone: bool = False
    gives: str = ""
    # By case: the cause, and at the end the issue for which it waits.
    due: Mapping[str, str] = field(default_factory=dict)
    # By case: why its right values have other bits from run to run.
    differs: Mapping[str, str] = field(default_factory=dict)

    @property
    def python(self) -> Path:
        return VENVS / (self.venv or self.name) / "bin" / "python"

    def version(self) -> str:
        text = (REQUIREMENTS / f"{self.venv or self.name}.txt").read_text()
        return dict(line.split("==") for line in text.splitlines() if "==" in line)[self.package]

    def cases(self) -> dict[str, str]:
        """Each case with its program, in the programs' order."""
        return {case: program for program in self.programs for case in cases_of(PROGRAMS / program)}

    def longest(self) -> float:
        """How long all of it may take, both ways, on a crowded machine."""
        processes = len(self.cases()) if self.alone else len(self.programs) + len(self.due)
        return CROWDED * self.seconds * len(WAYS) * processes


def cases_of(program: Path) -> list[str]:
    """A program's cases: its functions without parameters that yield values."""
    return re.findall(r"^def ([a-z]\w*)\(\) -> Iterator\[Value\]:$", program.read_text(), re.MULTILINE)


def load(table: Path = TABLE) -> dict[str, Library]:
    content = tomllib.loads(table.read_text())
    return {each["name"]: Library(**each | {"programs": tuple(each["programs"])}) for each in content["library"]}


@dataclass(frozen=True, slots=True)
class Outcome:
    """A case that one way ran. Without a cause the values were right."""

    failed: str = ""
    error: float = 0.0
    sha256: str = ""


def run(
    library: Library, way: str, cases: Sequence[str], environment: Mapping[str, str] | None = None
) -> dict[str, Outcome]:
    """Each case's outcome; a case that printed nothing has what the process said last as its cause."""
    groups = (
        [[case] for case in cases]
        if library.alone
        else [[c for c in cases if library.cases()[c] == p] for p in library.programs]
    )
    found: dict[str, Outcome] = {}
    for group in filter(None, groups):
        found |= _process(library, way, library.cases()[group[0]], group, environment or {})
    return found


def _process(
    library: Library, way: str, program: str, cases: Sequence[str], environment: Mapping[str, str]
) -> dict[str, Outcome]:
    command = [REMOTEGPU, "run", *WAYS[way], "--", str(library.python), str(PROGRAMS / program), *cases]
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
    ):
        caches = {variable: f"{folder}/{name}" for variable, name in CACHES.items()}
        process = subprocess.Popen(
            command,
            stdout=out,
            stderr=err,
            env=os.environ | caches | dict(environment),
            cwd=folder,
            start_new_session=True,
        )
        watch = Watch()
        while process.poll() is None and watch.within(library.seconds):
            time.sleep(0.05)
        ended = f"ended with {process.poll()}"
        if process.poll() is None:
            ended = f"had not ended after {library.seconds} s"
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        out.seek(0)
        err.seek(0)
        stdout, stderr = out.read(), err.read()
    found = {}
    for line in stdout.splitlines():
        if line.startswith('{"case"'):
            result = json.loads(line)
            found[result["case"]] = Outcome(
                result.get("failed", ""), result.get("error", 0.0), result.get("sha256", "")
            )
    cause = f"the process {ended}: {last_words(stderr)}"
    return {case: found.get(case, Outcome(failed=cause)) for case in cases}


def last_words(stderr: str) -> str:
    """What this project's own lines say, else the last line."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip() and not line.startswith("---")]
    ours = list(dict.fromkeys(line for line in lines if line.startswith("remotegpu:")))
    return " ".join(" / ".join(ours[:3] or lines[-1:] or ["it said nothing"]).split())[:400]


@dataclass(frozen=True, slots=True)
class Row:
    """A library of a page. This is the format of the file of results, whatever program makes it."""

    library: str
    version: str
    # How many of the cases were right.
    cases: int
    native: int
    share: int
    # The greatest difference from the CPU, in units of the greatest value.
    error: float
    # How many of the cases that both ways found right had the same bits.
    same_bits: int
    # What failed, by its cause, each with the cases and the ways.
    failed: Mapping[str, str]
    date: str


def row(library: Library, native: Mapping[str, Outcome], share: Mapping[str, Outcome]) -> Row:
    right = [case for case in native if not native[case].failed and not share[case].failed]
    failed = {}
    for case in native:
        ways = [way for way, of in (("natively", native), ("on a share", share)) if of[case].failed]
        if ways:
            cause = library.due.get(case) or native[case].failed or share[case].failed
            failed[case] = f"{' and '.join(ways)}: {cause}"
    return Row(
        library.name, library.version(), len(native),
        sum(not each.failed for each in native.values()), sum(not each.failed for each in share.values()),
        max((max(native[case].error, share[case].error) for case in right), default=0.0),
        sum(native[case].sha256 == share[case].sha256 for case in right), failed,
        datetime.datetime.now(datetime.UTC).date().isoformat(),
    )  # fmt: skip


@functools.cache
def both(name: str) -> dict[str, dict[str, Outcome]]:
    """A library's cases natively and on a share; a case that is due as well, but in a process without the others."""
    library = load()[name]
    found: dict[str, dict[str, Outcome]] = {}
    for way in WAYS:
        ready = [case for case in library.cases() if case not in library.due]
        found[way] = run(library, way, ready)
        for case in library.due:
            found[way] |= run(library, way, [case])
    return found
