"""Compares the versions of two interpreters: whether one can read the other's objects. Pure except for `installed`."""

import importlib.metadata
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

# Packages whose versions must match on both sides, because their objects cross the wire.
PACKAGES: Final = ("torch", "numpy", "cloudpickle")
SKEW_ADVICE: Final = (
    "use the same minor version on both sides, another environment (`remotegpu ls` shows them), or, at your own risk, "
    "`skew: allow` under `session` in remotegpu.yaml"
)


@dataclass(frozen=True, slots=True)
class Skew:
    """The version differences between client and acceptor. Each is a phrase that names both versions."""

    refusals: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def sentence(self, place: str) -> str:
        """Returns the sentence by which `place` refuses the client; "" if it does not refuse."""
        return f"{place} does not fit: {'; '.join(self.refusals)}: {SKEW_ADVICE}" if self.refusals else ""


def installed() -> dict[str, str]:
    """Returns the versions of `python` and of each of PACKAGES that is installed, without importing them."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def compare(client: Mapping[str, str], acceptor: Mapping[str, str]) -> Skew:
    """Compares the versions of both sides.

    Pickles and code objects need the same Python minor version, operator schemas the same torch minor version. Arrays
    of another numpy major version usually work, so that difference is a warning. A package that one side lacks is not a
    difference: its objects cannot cross.
    """
    refusals: list[str] = []
    warnings: list[str] = []
    for name, depth, tell in (("python", 2, refusals), ("torch", 2, refusals), ("numpy", 1, warnings)):
        theirs, ours = client.get(name, ""), acceptor.get(name, "")
        if theirs and ours and _leading(theirs, depth) != _leading(ours, depth):
            tell.append(f"the client has {name} {theirs}, the acceptor {name} {ours}")
    return Skew(tuple(refusals), tuple(warnings))


def _leading(version: str, depth: int) -> list[str]:
    return version.split("+", maxsplit=1)[0].split(".")[:depth]
