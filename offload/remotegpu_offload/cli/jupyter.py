"""`remotegpu offload jupyter install`: a kernel that runs in an acceptor, among those that Jupyter offers."""

import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated

import typer

from remotegpu.cli import exits
from remotegpu.cli.options import BackendOption, EnvironmentOption

commands = typer.Typer(name="jupyter", help="Notebooks whose kernel runs in an acceptor.", no_args_is_help=True)


@commands.callback()
def _group() -> None:
    """With one command, Typer would leave out its name."""


@commands.command()
def install(
    name: Annotated[str, typer.Option("--name", help="Of the kernel, in lower case.")] = "remotegpu",
    display_name: Annotated[str, typer.Option("--display-name", help="As Jupyter shows it.")] = "",
    backend: BackendOption = None,
    environment: EnvironmentOption = None,
    appliance: Annotated[
        str, typer.Option("--appliance", "-a", metavar="HOST:PORT", help="Borrow a share there for each kernel.")
    ] = "",
    fraction: Annotated[float, typer.Option("--fraction", "-p", help="Which part of a GPU to borrow.")] = 1.0,
    user: Annotated[bool, typer.Option("--user", help="For you, instead of for this Python environment.")] = False,
) -> None:
    """Add a kernel to Jupyter: its cells run in an acceptor, with code and files from this machine."""
    try:
        from jupyter_core.paths import jupyter_data_dir  # noqa: PLC0415 (not everybody has Jupyter)

        from remotegpu_offload.jupyter import kernelspec  # noqa: PLC0415
    except ImportError:
        raise exits.CliError(
            exits.USAGE, f"{sys.executable} has no Jupyter: install it there (`python -m pip install jupyterlab`)"
        ) from None
    if kernelspec.PROVISIONER not in {each.name for each in entry_points(group="jupyter_client.kernel_provisioners")}:
        raise exits.CliError(
            exits.SOFTWARE,
            f"remotegpu is not properly installed in {sys.prefix}: `python -m pip install remotegpu` there",
        )
    shown = display_name or f"Python (remotegpu{f', {backend}' if backend else ''})"
    spec = kernelspec.kernelspec(
        shown,
        backend=backend or "",
        environment=environment or "",
        appliance=appliance,
        fraction=fraction if appliance else 0,
    )
    folder = Path(jupyter_data_dir()) if user else Path(sys.prefix, "share", "jupyter")
    try:
        print(kernelspec.install(folder, name, spec))  # noqa: T201
    except OSError as error:
        raise exits.CliError(exits.USAGE, f"{error.filename} cannot be written: {error.strerror}; try --user") from None
