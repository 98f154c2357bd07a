"""The commands of `remotegpu offload` and their options; the other modules of this folder execute them."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from remotegpu.cli import exits
from remotegpu.cli.options import (
    ApplianceOption,
    BackendOption,
    CaOption,
    ConfigOption,
    CountOption,
    EnvironmentOption,
    FractionOption,
    JsonOption,
    PythonOption,
    QuickOption,
    RunsOption,
    ServerNameOption,
    TokenFileOption,
    TokenOption,
    WaitOption,
    read_access,
    required,
)
from remotegpu.cli.options import split as split_names
from remotegpu_offload.cli import jupyter, reverse

offload = typer.Typer(
    name="offload",
    help="Run functions, classes and tensors of a Python program on an appliance's accelerator.",
    no_args_is_help=True,
)

reverse.register(offload)
offload.add_typer(jupyter.commands)


@offload.command(
    context_settings={"allow_interspersed_args": False},
    epilog="Exit code: the program's own; before it runs, as of `remotegpu run`.",
)
def run(
    program: Annotated[
        list[str], typer.Argument(metavar="SCRIPT [ARGS...]", help="As `python` gets it; also `-- -m MODULE`.")
    ],
    split: Annotated[
        Literal["torch", "rules", "app"],
        typer.Option(help="rules: as the configuration says; torch: only its torch rule; app: all of it runs there."),
    ] = "rules",
    config: ConfigOption = None,
    python: PythonOption = None,
    backend: BackendOption = None,
    appliance: ApplianceOption = "",
    count: CountOption = 1,
    fraction: FractionOption = None,
    # No short form -m: after `python`, -m means a module.
    memory: Annotated[str | None, typer.Option("--memory", help="Memory of each GPU, as 4GiB.")] = None,
    wait: WaitOption = True,
    token: TokenOption = "",
    token_file: TokenFileOption = None,
    ca: CaOption = None,
    server_name: ServerNameOption = "",
) -> None:
    """Run a Python program, and the parts that its configuration names on an appliance (by default a local one)."""
    from remotegpu.cli.run.child import end_like  # noqa: PLC0415
    from remotegpu_offload.cli.run import RunOptions, run  # noqa: PLC0415

    options = RunOptions(
        program=program,
        split=split,
        config=config,
        python=python,
        backend=backend,
        count=count,
        fraction=fraction,
        memory=memory,
        appliances=split_names(appliance),
        access=read_access(token, token_file, ca, server_name),
        wait=wait,
    )
    raise typer.Exit(end_like(lambda: run(options)))


@offload.command()
def check(config: ConfigOption = None, python: PythonOption = None, as_json: JsonOption = False) -> None:
    """Report the effect of each rule of the configuration, and rules that cannot work.

    Exit code 0 if there is no FAIL.
    """
    from remotegpu_offload.cli import check  # noqa: PLC0415

    raise typer.Exit(0 if check.check(config, python, as_json=as_json) else exits.USAGE)


@offload.command(context_settings={"allow_interspersed_args": False})
def explain(
    script: Annotated[Path, typer.Argument(help="The program, as `python` would get it.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Its arguments.")] = None,
    config: ConfigOption = None,
    python: PythonOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a program on this machine's CPU. Report data that would cross, lines that wait, and rules that would pay."""
    from remotegpu_offload.cli import explain  # noqa: PLC0415

    raise typer.Exit(explain.explain(script, arguments or [], config, python, as_json=as_json))


@offload.command()
def bench(
    everything: Annotated[bool, typer.Option("--all", help="Also 1 and 10 ms away.")] = False,
    quick: QuickOption = False,
    runs: RunsOption = None,
    python: PythonOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure the cost of steps, calls, moves, files and code, with the appliance and the program on this machine."""
    from remotegpu_offload.cli.bench import BenchOptions, bench  # noqa: PLC0415

    bench(BenchOptions(python, everything, quick, runs), "json" if as_json else "table")


@offload.command()
def stats(
    session: Annotated[str | None, typer.Argument(help="One in detail; else all of this user.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show this user's running sessions: their acceptors, and the data that crossed."""
    from remotegpu_offload.cli import sessions  # noqa: PLC0415

    sessions.stats(session, as_json=as_json)


@offload.command()
def switch(
    session: Annotated[str, typer.Argument(help="Its id, as `stats` shows it.")],
    backend: BackendOption = None,
    environment: EnvironmentOption = None,
    timeout: Annotated[float | None, typer.Option(min=0, help="Seconds that calls may take to end.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Move a running session to another acceptor. Its program continues and loses nothing."""
    from remotegpu_offload.cli import sessions  # noqa: PLC0415

    sessions.switch(session, backend, environment, timeout, as_json=as_json)


@offload.command()
def backends(
    appliances: ApplianceOption = "",
    token: TokenOption = "",
    token_file: TokenFileOption = None,
    ca: CaOption = None,
    server_name: ServerNameOption = "",
    as_json: JsonOption = False,
) -> None:
    """List each appliance's environments for programs, with their accelerators and packages."""
    from remotegpu_offload.cli import sessions  # noqa: PLC0415

    sessions.backends(required(appliances), read_access(token, token_file, ca, server_name), as_json=as_json)
