"""Finds optional packages by their entry points, so that no module of remotegpu imports them.

There are two such packages: `remotegpu_offload`, whose entry point `offload` is an `Offload`, and the operator's
package, whose entry points `why` and `snapshot` are a `remotegpu.api.waiting.Explainer` and a
`remotegpu.api.snapshot.Snapshots`.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    import typer

    from remotegpu.api.snapshot import Snapshots
    from remotegpu.api.waiting import Explainer
    from remotegpu.appliance.checks import EnvironmentState
    from remotegpu.appliance.parts import Parts
    from remotegpu.appliance.sessions.processes import Launch
    from remotegpu.appliance.settings import EnvironmentOption

GROUP: Final = "remotegpu.extensions"
OFFLOAD: Final = "offload"
WHY: Final = "why"
SNAPSHOT: Final = "snapshot"
# Packages that the extra `offload` installs.
_OF_OFFLOAD: Final = ("cloudpickle", "yaml")


class MissingError(Exception):
    """Raised if this installation lacks a needed package. The message has the remedy."""


class NoEnvironmentError(Exception):
    """Raised if no environment fits. The message lists the environments, with the remedy."""


class Environment(Protocol):
    """A Python interpreter in which offload sessions run."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields of `pb.Environment`."""


class Environments(Protocol):
    """The environments that an appliance serves."""

    async def start(self) -> None:
        """Starts all environments. Returns when each has passed its test or has failed."""

    async def stop(self) -> None: ...

    def alive(self) -> Sequence[Environment]:
        """Returns the environments that serve sessions, or that are being restarted."""

    def states(self) -> Sequence["EnvironmentState"]:
        """Returns the states for the health checks."""

    def choose(
        self, name: str, backends: Sequence[str], theirs: Mapping[str, str], *, allow_skew: bool
    ) -> "tuple[Environment, Launch]":
        """Chooses the environment for a session, and returns it with its launcher. `theirs` are the client's versions.

        Raises NoEnvironmentError.
        """


class NoEnvironments:
    """The empty set of environments, for an appliance without `--offload`."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def alive(self) -> Sequence[Environment]:
        return ()

    def states(self) -> Sequence["EnvironmentState"]:
        return ()

    def choose(self, *_: object, **__: object) -> "tuple[Environment, Launch]":
        raise NoEnvironmentError(
            "this appliance serves no offload sessions: start it with --offload PYTHON, or name another appliance"
        )


class Offload(Protocol):
    """The interface of offload for the command line and the appliance."""

    def commands(self) -> "typer.Typer":
        """Returns the commands of `remotegpu offload ...`."""

    def options(self, texts: Sequence[str]) -> "tuple[EnvironmentOption, ...]":
        """Parses values of the option `--offload`. Raises ValueError with a sentence for the user."""

    def environments(self, parts: "Parts") -> Environments:
        """Creates the environments that the settings in `parts` name."""


@cache
def offload() -> Offload | None:
    """Imports and returns offload; None if it, or a package that it needs, is missing.

    The import is slow, so call this function only if offload is used.
    """
    from importlib.util import find_spec  # noqa: PLC0415

    found: Offload | None = _load(OFFLOAD) if all(map(find_spec, _OF_OFFLOAD)) else None
    return found


def required_offload() -> Offload:
    """Returns offload. Raises MissingError."""
    found = offload()
    if found is None:
        raise MissingError(
            "this installation of remotegpu lacks offload, or what that needs: "
            "`python -m pip install 'remotegpu[offload]'`, or `make set-up` in a clone"
        )
    return found


def explainer() -> "Explainer":
    """Returns the explainer. Raises MissingError."""
    found: Explainer = _of_operator(WHY)
    return found


def snapshots() -> "Snapshots":
    """Returns the builder of snapshots. Raises MissingError."""
    found: Snapshots = _of_operator(SNAPSHOT)
    return found


def _of_operator(name: str) -> Any:
    found = _load(name)
    if found is None:
        raise MissingError(
            "this installation of remotegpu lacks the operator's package, which knows how shares are given: "
            "`python -m pip install --force-reinstall 'remotegpu[kubernetes]'`, or `make set-up` in a clone"
        )
    return found


def _load(name: str) -> Any:
    """Loads an entry point. Returns None if it is missing."""
    from importlib.metadata import entry_points  # noqa: PLC0415 (slow: it scans all installed packages)

    return next((point.load() for point in entry_points(group=GROUP, name=name)), None)
