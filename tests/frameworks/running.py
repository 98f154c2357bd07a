"""Runs a framework's program, all its cases in one process, natively on the software GPU and remotely on a share."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from support.system import REMOTEGPU

PROGRAMS = Path(__file__).parent / "programs"
SHARE = "0.25"


def cases_of(program: str) -> list[str]:
    """A program's cases: its public functions without parameters."""
    return re.findall(r"^def ([a-z]\w*)\(\)(?: -> .*)?:$", (PROGRAMS / program).read_text(), re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    """The output of each case that passed, and the process's error output."""

    digests: dict[str, str]
    stderr: str


@dataclass(frozen=True)
class Outcomes:
    native: Outcome
    remote: Outcome

    def check(self, case: str) -> None:
        """The case's results were right natively and on a share, and have the same bits."""
        assert case in self.native.digests, self.native.stderr
        assert case in self.remote.digests, self.remote.stderr
        assert self.remote.digests[case] == self.native.digests[case]


def outcome(program: str, *where: str, environment: Mapping[str, str]) -> Outcome:
    command = [REMOTEGPU, "run", *where, "-p", SHARE, "--", sys.executable, str(PROGRAMS / program)]
    done = subprocess.run(
        [*command, *cases_of(program)], capture_output=True, text=True, timeout=800, env=os.environ | environment
    )
    digests = dict(line.split() for line in done.stdout.splitlines())
    return Outcome(digests, done.stderr)
