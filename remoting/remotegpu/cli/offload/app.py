"""The commands of `remotegpu offload` and their options; what they do stands in the modules beside this one."""

from pathlib import Path
from typing import Annotated

import typer

from remotegpu.api import names
from remotegpu.cli import exits
from remotegpu.cli.offload import jupyter, reverse
from remotegpu.cli.options import JsonOption

offload = typer.Typer(
    name="offload",
    help="Run functions, classes and tensors of a Python program on an appliance's accelerator.",
    no_args_is_help=True,
)

reverse.register(offload)
offload.add_typer(jupyter.commands)

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", envvar=names.CONFIG_ENV, help="The configuration; else remotegpu.yaml of this folder."
    ),
]
PythonOption = Annotated[
    str | None, typer.Option("--python", help="The interpreter of the program; else `python` of the shell.")
]


@offload.command()
def check(config: ConfigOption = None, python: PythonOption = None, as_json: JsonOption = False) -> None:
    """Say what each rule of the configuration will do, and what cannot work; exit code 0 only without a FAIL."""
    from remotegpu.cli.offload import check  # noqa: PLC0415

    raise typer.Exit(0 if check.check(config, python, as_json=as_json) else exits.USAGE)


@offload.command(context_settings={"allow_interspersed_args": False})
def explain(
    script: Annotated[Path, typer.Argument(help="The program, as `python` would get it.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Its arguments.")] = None,
    config: ConfigOption = None,
    python: PythonOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a program here, on the CPU, and say what of it would cross, where it waits, and which rules would pay."""
    from remotegpu.cli.offload import explain  # noqa: PLC0415

    raise typer.Exit(explain.explain(script, arguments or [], config, python, as_json=as_json))


@offload.command()
def bench(
    everything: Annotated[bool, typer.Option("--all", help="Also 1 and 10 ms away.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Less of everything: rough figures.")] = False,
    runs: Annotated[int | None, typer.Option(min=1, help="How often everything is measured; 3.")] = None,
    python: PythonOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure what crossing costs: steps, calls, moves, files, code; appliance and program on this machine."""
    from remotegpu.cli.offload.bench import BenchOptions, bench  # noqa: PLC0415

    bench(BenchOptions(python, everything, quick, runs), "json" if as_json else "table")
