"""What remotegpu takes from a package beside it, found by an entry point: nothing of ours imports that package.

There is one such package, `remotegpu_offload`. Its entry point is an `Offload`.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    import typer

    from remotegpu.appliance.checks import EnvironmentState
    from remotegpu.appliance.parts import Parts
    from remotegpu.appliance.processes import Launch
    from remotegpu.appliance.settings import EnvironmentOption

GROUP: Final = "remotegpu.extensions"
OFFLOAD: Final = "offload"


class MissingError(Exception):
    """This installation lacks the package that is needed; the message says what to do."""


class NoEnvironmentError(Exception):
    """None fits; the message says which there are and what to do."""


class Environment(Protocol):
    """An interpreter in which sessions can run."""

    def to_dict(self) -> dict[str, Any]:
        """The fields of `pb.Environment`."""


class Environments(Protocol):
    """The environments that an appliance serves."""

    async def start(self) -> None:
        """Returns when each one is proven, or has failed."""

    async def stop(self) -> None: ...

    def alive(self) -> Sequence[Environment]:
        """Those that serve sessions now, or are about to again."""

    def states(self) -> Sequence["EnvironmentState"]:
        """For the health checks."""

    def choose(
        self, name: str, backends: Sequence[str], theirs: Mapping[str, str], *, allow_skew: bool
    ) -> "tuple[Environment, Launch]":
        """The environment for a session, and what starts it. `theirs` are the client's versions.

        Raises NoEnvironmentError.
        """


class NoEnvironments:
    """Those of an appliance that was started without `--offload`."""

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
    """What the command line and the appliance need of offload."""

    def commands(self) -> "typer.Typer":
        """`remotegpu offload ...`"""

    def options(self, texts: Sequence[str]) -> "tuple[EnvironmentOption, ...]":
        """What `--offload` says. Raises ValueError with the sentence for the person who wrote it."""

    def environments(self, parts: "Parts") -> Environments:
        """Those of the settings' options."""


@cache
def offload() -> Offload | None:
    """Imports the package, so only for who uses it."""
    from importlib.metadata import entry_points  # noqa: PLC0415 (it looks through all that is installed)

    for point in entry_points(group=GROUP, name=OFFLOAD):
        found: Offload = point.load()
        return found
    return None


def required_offload() -> Offload:
    """Raises MissingError."""
    found = offload()
    if found is None:
        raise MissingError(
            "this installation of remotegpu lacks offload, its package remotegpu_offload: "
            "`python -m pip install --force-reinstall remotegpu`, or `make set-up` in a clone"
        )
    return found
