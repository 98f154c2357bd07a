"""The types of the table of attacks: an attack, and its outcome."""

from __future__ import annotations

import enum
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.builds import linked_dist, replace
from support.system import ROOT

UNDEFENDED = ROOT / "target" / "undefended" / "sanitize"
VARIABLE = "REMOTEGPU_UNDEFENDED"


class Where(enum.Enum):
    """From where the attacker attacks."""

    NETWORK = "network"
    MOVE = "move"
    SESSION = "session"
    KEPT = "kept"
    TAKEN_OVER = "taken-over"
    ACCEPTOR = "acceptor"
    MACHINE = "machine"


class How(enum.Enum):
    """How a positive control leaves the defence out."""

    BUILD = "build"  # a worker or gateway with the cargo feature `undefended`; the name is in `defences.rs`
    PATCH = "patch"  # a patch of Python by `undefended_appliance.py` or, for acceptors, `acceptors.PATCHES`
    SET_UP = "set-up"  # the world is set up otherwise
    NONE = "none"  # there is no control; the name says why


@dataclass(frozen=True, slots=True)
class Control:
    how: How
    name: str


@dataclass(frozen=True, slots=True)
class Attack:
    """A row of the table. `expected` is the code with which the attacker is refused."""

    where: Where
    name: str
    defence: str
    canary: str
    expected: str
    control: Control


@dataclass(frozen=True, slots=True)
class Outcome:
    """`won`: the attacker has the canary. `code` is the answer to the attacker."""

    won: bool
    code: str


def put_undefended(dist: Path, defence: str, *programs: str) -> None:
    """Replaces these programs of an installation by the test build, which lacks this defence."""
    for name in programs:
        replace(dist, UNDEFENDED / name, VARIABLE, defence)


@contextmanager
def dist_without(defence: str) -> Iterator[Path]:
    """An installation whose worker and gateway lack a defence."""
    with tempfile.TemporaryDirectory(prefix="remotegpu-test-") as name:
        dist = linked_dist(Path(name))
        put_undefended(dist, defence, "remotegpu-worker", "remotegpu-gateway")
        yield dist


def launcher(control: Control | None) -> tuple[str, ...]:
    """A command prefix for the appliance's command; leaves out the defence that a control of this kind names."""
    if control is None or control.how is not How.PATCH:
        return ()
    return (sys.executable, str(Path(__file__).with_name("undefended_appliance.py")), control.name)
