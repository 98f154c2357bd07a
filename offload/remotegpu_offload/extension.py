"""The extension by which remotegpu finds offload: the entry point `offload` of `remotegpu.extensions`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import typer

    from remotegpu import extensions
    from remotegpu.appliance.parts import Parts
    from remotegpu.appliance.settings import EnvironmentOption

# The command line must not load the appliance's modules, and the appliance must not load those of the command line.
# ruff: noqa: PLC0415


class Extension:
    """Implements `remotegpu.extensions.Offload`."""

    def commands(self) -> "typer.Typer":
        from remotegpu_offload.cli.app import offload

        return offload

    def options(self, texts: Sequence[str]) -> "tuple[EnvironmentOption, ...]":
        from remotegpu_offload.appliance.option import parse_all

        return parse_all(texts)

    def environments(self, parts: "Parts") -> "extensions.Environments":
        from remotegpu_offload.appliance.environments import make_environments

        return make_environments(parts)


offload: "Final[extensions.Offload]" = Extension()
