"""Runs the libraries' own test suites, which tests/libraries/suites.toml lists."""

from __future__ import annotations

import contextlib
import json
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from support import libraries
from support.libraries import CACHES, FOLDER, PROGRAMS, VENVS
from support.system import CROWDED, Watch

TABLE: Final = FOLDER / "suites.toml"


@dataclass(frozen=True, slots=True)
class Suite:
    name: str
    # The folder with the test files in the venv, and the patterns of the files.
    folder: str
    files: tuple[str, ...]
    # The time limits in seconds of one test and of all tests, on an idle machine.
    seconds: int
    in_all: int
    # The package from which unittest imports the tests. If it is empty, pytest runs the files.
    package: str = ""
    # Variables that a user must set too, before `libraries.filled` completes them.
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def venv(self) -> Path:
        return VENVS / self.name

    @property
    def skips(self) -> Path:
        return FOLDER / "skips" / f"{self.name}.toml"

    def skipped(self) -> list[dict[str, Any]]:
        skipped: list[dict[str, Any]] = tomllib.loads(self.skips.read_text())["skip"]
        return skipped

    def patterns(self) -> list[str]:
        return [pattern for each in self.skipped() for pattern in each["tests"]]

    def modules(self) -> list[str]:
        (folder,) = self.venv.glob(self.folder)
        files = sorted(file for pattern in self.files for file in folder.glob(pattern))
        if not self.package:
            return [str(file) for file in files]
        return [".".join([self.package, *file.relative_to(folder).with_suffix("").parts]) for file in files]

    def command(self, modules: Sequence[str]) -> list[str]:
        runner = PROGRAMS / ("suite.py" if self.package else "suite_pytest.py")
        return [str(self.venv / "bin" / "python"), str(runner), str(self.skips), *modules]

    def longest(self) -> float:
        return CROWDED * self.in_all


def load(table: Path = TABLE) -> dict[str, Suite]:
    content = tomllib.loads(table.read_text())
    return {each["name"]: Suite(**each | {"files": tuple(each["files"])}) for each in content["suite"]}


@dataclass(slots=True)
class Found:
    """The problem of each test; empty if the test passed."""

    tests: dict[str, str] = field(default_factory=dict)
    # The patterns of the table of skips that matched a test.
    used: set[str] = field(default_factory=set)


def run(suite: Suite, where: Sequence[str], modules: Sequence[str]) -> Found:
    """Runs all modules in one process. If a test ends the process or hangs, a new process runs the next modules."""
    found, left = Found(), list(modules)
    while left:
        module, begun = left[0], ""
        why = "no line of the runner"
        for line in _process(suite, where, left):
            match line:
                case {"module": str(module)}:
                    left, begun = left[left.index(module) + 1 :], ""
                case {"begun": str(begun)}:
                    pass
                case {"left_out": _, "by": list(by)}:
                    found.used |= set(by)
                case {"test": str(name), "problem": str(problem)}:
                    found.tests[name], begun = problem, ""
                case {"complete": True}:
                    return found
                case {"ended": str(why)}:
                    pass
        found.tests[begun or module] = why
        left = left[1:] if left and left[0] == module else left
    return found


def _process(suite: Suite, where: Sequence[str], modules: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yields the lines that the runner prints, then a line about the end of its process."""
    # Numba's own tests check the location of its cache.
    caches = {variable: name for variable, name in CACHES.items() if variable != "NUMBA_CACHE_DIR"}
    environment = libraries.filled(suite.environment, suite.venv)
    with libraries.started(where, suite.command(modules), environment, caches) as running:
        watch, ended, part = Watch(), "", ""
        with running.stdout.open() as lines:
            while not ended:
                code = running.process.poll()
                while read := lines.readline():
                    watch, part = Watch(), part + read
                    if part.endswith("\n"):
                        yield from _said(part)
                        part = ""
                if code is not None:
                    ended = f"the process ended with {code}"
                elif not watch.within(suite.seconds):
                    ended = f"had not ended after {suite.seconds} s"
                else:
                    time.sleep(0.05)
        yield {"ended": f"{ended}: {libraries.last_words(running.stderr.read_text(errors='replace'))}"}


def _said(line: str) -> Iterator[dict[str, Any]]:
    """Yields a line as JSON if the runner printed it. Lines that tests print are ignored."""
    with contextlib.suppress(json.JSONDecodeError):
        if line.startswith("{"):
            yield json.loads(line)
