"""`remotegpu offload jupyter install`, which is gone: says what is there in its place, for one release."""

import typer

from remotegpu.cli import exits
from remotegpu_offload.jupyter.proxy import GONE

commands = typer.Typer(name="jupyter", hidden=True, no_args_is_help=True)


@commands.callback()
def _group() -> None:
    """With one command, Typer would leave out its name."""


@commands.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def install() -> None:
    """Say what is there in place of kernels in acceptors."""
    raise exits.CliError(exits.USAGE, GONE.removeprefix("remotegpu: "))
