"""Programs of tests/compiled_programs under a library that watches the outputs of their driver."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

# The generator is no part of the installed package.
sys.path.insert(0, str(Path(__file__).parents[2] / "remoting" / "codegen"))

from compiled_programs import building
from compiled_programs.conftest import compiled, toolkit  # noqa: F401  (fixtures)
from outputs import interposer
from outputs.interposer import Answer, Interposer, Report
from support.system import DIST, PROGRAMS, Appliance, appliance

PLACES = ("native", "share")
TWO_DEVICES = {"peers.py"}
# The last line that programs of tests/programs print.
PRINTED = {"peers.py": "reached", "share_memory.py": "shared", "share_events.py": "in order"}


@dataclass
class Place:
    """A place where programs run, with its reports: one for each filling, by program."""

    watching: Interposer
    share: Appliance | None
    folder: Path
    compiled: Callable[..., Path]
    seen: dict[tuple[str, ...], list[Report]] = field(default_factory=dict)

    def watch(self, source: str, *options: str) -> list[Report]:
        """Runs a program once with each filling; it has to print what it always prints."""
        key = (source, *options)
        if key not in self.seen:
            of_python = source.endswith(".py")
            program = (sys.executable, os.fspath(PROGRAMS / source)) if of_python else (os.fspath(self.compiled(*key)),)
            name = "-".join((source, *options)).replace("/", "_")
            self.seen[key] = [self._run(program, name, filling) for filling in interposer.FILLINGS]
        return self.seen[key]

    def _run(self, program: tuple[str, ...], name: str, filling: int) -> Report:
        report = self.folder / f"{name}-{filling:x}"
        variables = [f"{name}={value}" for name, value in self.watching.variables(report, filling).items()]
        devices = "2" if name in TWO_DEVICES else "1"
        if self.share is None:
            prefix = ["env", f"REMOTEGPU_SOFTGPU_DEVICES={devices}"]
        else:
            prefix = [*self.share.command("env", options=("-n", devices))]
        line = [*prefix, *variables, *program]
        run = subprocess.run(line, check=False, capture_output=True, text=True, timeout=240)
        assert (run.returncode, run.stdout.splitlines()[-1:]) == (0, [PRINTED.get(name, "ok")]), run.stdout + run.stderr
        return self.watching.layout.read(report)


def unwritten(reports: list[Report]) -> set[Answer]:
    """Fields that kept both fillings in the same call."""
    first, second = (report.unwritten for report in reports)
    return {answer for answer in first.keys() & second.keys() if first[answer] & second[answer]}


@pytest.fixture(scope="session")
def share() -> Iterator[Appliance]:
    with appliance("--gpus", "2", profile="hostile") as it:
        yield it


@pytest.fixture(scope="session")
def places(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    compiled: Callable[..., Path],  # noqa: F811
) -> Callable[[str], Place]:
    known: dict[str, Place] = {}

    def place(name: str) -> Place:
        if name not in known:
            driver = building.native_libraries() if name == "native" else DIST / "client"
            if not (driver / "libcuda.so.1").exists():
                pytest.skip("client and software GPU are not built (make build)")
            folder = tmp_path_factory.mktemp(name)
            watching = interposer.build(driver / "libcuda.so.1", folder / "interposer")
            lent = None if name == "native" else request.getfixturevalue("share")
            known[name] = Place(watching, lent, folder, compiled)
        return known[name]

    return place


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, places: Callable[[str], Place]) -> Place:
    return places(request.param)
