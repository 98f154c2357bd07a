"""`remotegpu offload jupyter install`, a removed command: names the replacement, for one release."""

import typer

from remotegpu.cli import exits
from remotegpu_offload.jupyter.proxy import GONE

commands = typer.Typer(name="jupyter", hidden=True, no_args_is_help=True)


@commands.callback()
def _group() -> None:
    """Makes Typer keep the group's name: it would omit the name of a group with a single command."""


@commands.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def install() -> None:
    """Print the replacement for kernels in acceptors, which were removed."""
    raise exits.CliError(exits.USAGE, GONE.removeprefix("remotegpu: "))
