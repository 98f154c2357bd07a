"""What an attack is, and what came of one."""

from __future__ import annotations

import enum
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.system import DIST, ROOT

UNDEFENDED = ROOT / "target" / "undefended" / "release"
LAUNCHER = Path(__file__).with_name("undefended_appliance.py")


class Where(enum.Enum):
    """From where the attacker attacks."""

    NETWORK = "network"
    SESSION = "session"
    ACCEPTOR = "acceptor"


class How(enum.Enum):
    """How a positive control leaves the defence out."""

    BUILD = "build"  # a worker or gateway with the cargo feature `undefended`; the name is in `defences.rs`
    PATCH = "patch"  # a patch of Python by `undefended_appliance.py` or, for acceptors, `acceptors.PATCHES`
    SET_UP = "set-up"  # the world is set up otherwise
    NONE = "none"  # there is no control, for the reason that stands in the place of the name


@dataclass(frozen=True, slots=True)
class Control:
    how: How
    name: str


@dataclass(frozen=True, slots=True)
class Attack:
    """A row of the table. `expected` is the code with which the attacker is turned away."""

    where: Where
    name: str
    defence: str
    canary: str
    expected: str
    control: Control


@dataclass(frozen=True, slots=True)
class Outcome:
    """`won`: the attacker has the canary. `code` is what it was answered."""

    won: bool
    code: str


@contextmanager
def dist_without(defence: str) -> Iterator[Path]:
    """An installation whose worker and gateway lack a defence. The appliance hands no variable of its own to them."""
    with tempfile.TemporaryDirectory(prefix="remotegpu-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        for entry in DIST.iterdir():
            if entry.name != "bin":
                (folder / entry.name).symlink_to(entry)
        (folder / "bin").mkdir()
        for entry in (DIST / "bin").iterdir():
            (folder / "bin" / entry.name).symlink_to(entry)
        put_undefended(folder, defence, "remotegpu-worker", "remotegpu-gateway")
        yield folder


def put_undefended(dist: Path, defence: str, *programs: str) -> None:
    """Put scripts that start the programs of the test build in the place of these."""
    for name in programs:
        script = dist / "bin" / name
        script.unlink(missing_ok=True)
        script.write_text(f'#!/bin/sh\nREMOTEGPU_UNDEFENDED={defence} exec {UNDEFENDED / name} "$@"\n')
        script.chmod(script.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
