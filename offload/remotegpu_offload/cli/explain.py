"""`remotegpu offload explain`: runs a program here, and reports which data would cross."""

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.markup import escape

from remotegpu.api.quantities import format_bytes
from remotegpu.cli import exits
from remotegpu_offload import config as configuration
from remotegpu_offload.cli import interpreter

_SHOWN: Final = 12
_LEAST_SECONDS: Final = 0.001
_ROW: Final = "{:>9} {:>8} {:>11} {:>11} {:>16}  {}"


def explain(script: Path, arguments: list[str], config: Path | None, python: str | None, *, as_json: bool) -> int:
    """Prints the report, and returns the script's exit code. Raises CliError if the script cannot run."""
    if not script.is_file():
        raise exits.CliError(exits.NOT_FOUND, f"{script}: there is no such script; give the path of a file with Python")
    try:
        loaded = configuration.load(config)
    except configuration.ConfigError as error:
        raise exits.CliError(exits.USAGE, str(error)) from None
    if loaded.source is None:
        # As in `offload run`: without a configuration, the program's own folder counts as its code.
        loaded = configuration.Config(folder=script.resolve().parent)
    result = _run(interpreter.chosen(python), script, arguments, loaded)
    if as_json:
        print(json.dumps(result, indent=2))  # noqa: T201
    else:
        _show(result)
    return int(result["exit_code"])


def _run(python: str, script: Path, arguments: list[str], config: configuration.Config) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="remotegpu-explain-") as folder:
        request, out = Path(folder, "request"), Path(folder, "out")
        request.write_text(
            json.dumps({"config": configuration.dump(config), "folder": str(config.folder), "out": str(out)})
        )
        command = interpreter.command(
            python, "remotegpu_offload.explain.program", str(request), str(script), *arguments
        )
        try:
            done = subprocess.run(command, env=interpreter.with_libraries(), check=False)
        except OSError as error:
            raise exits.CliError(
                exits.NOT_EXECUTABLE, f"{python} cannot be started ({error.strerror}): give another with --python"
            ) from None
        if not out.exists():
            raise exits.CliError(
                exits.SOFTWARE,
                f"{script} ended {python} itself (code {done.returncode}) before its end: nothing was counted",
            )
        found: dict[str, Any] = json.loads(out.read_text())
        return found


def _show(result: dict[str, Any]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"\nIt ran for {result['seconds']:.2f} s and ended with code {result['exit_code']}.")
    if result["torch"] is not None:
        _show_tensors(console, result["torch"])
    functions = [line for line in result["functions"] if line["seconds"] >= _LEAST_SECONDS][:_SHOWN]
    if functions:
        slowed = ", all slowed down by the counting of tensors" if result["torch"] is not None else ""
        console.print(f"\nFunctions, longest first{slowed}")
        console.print(_ROW.format("seconds", "calls", "there", "back", "calls elsewhere", "function"))
        for line in functions:
            torch = "mostly tensors: the torch rule serves it" if line["served_by_torch"] else ""
            note = line["obstacle"] or torch or ("pays" if line["pays"] else "")
            row = _ROW.format(
                f"{line['seconds']:.3f}",
                line["calls"],
                format_bytes(line["argument_bytes"]),
                format_bytes(line["result_bytes"]),
                f"{line['crossing_seconds']:.3f} s",
                line["name"] + (f"  ({note})" if note else ""),
            )
            console.print(escape(row))
    if result["suggestions"]:
        console.print("\nRules that would pay, where the other side computes faster (remotegpu.yaml)")
        console.print("offload:")
        for found in result["suggestions"]:
            if found["caution"]:
                # Commented out, so that the user decides.
                console.print(f"  # - {escape(found['rule'])}  # not as it is: {escape(found['caution'])}")
            else:
                console.print(f"  - {escape(found['rule'])}  # {escape(found['why'])}")
    elif any(line["served_by_torch"] for line in result["functions"]):
        console.print(
            "\nNo function is worth a rule of its own: the torch rule serves this program, remotegpu offload run"
        )
    else:
        console.print("\nNo function is worth a rule of its own; the whole program: remotegpu offload run --split app")


def _show_tensors(console: Console, tensors: dict[str, Any]) -> None:
    console.print(
        f"\nAs torch device (torch mode): {tensors['operations']} operations, {tensors['round_trips']} round trips, "
        f"{format_bytes(tensors['bytes_out'])} to it, {format_bytes(tensors['bytes_in'])} back."
    )
    if tensors["waits"]:
        console.print("The program waits in these lines:")
    for wait in tensors["waits"][:_SHOWN]:
        place = f"{wait['file']}:{wait['line']}" if wait["line"] else "outside of your code"
        console.print(escape(f"{wait['times']:>8} x  {place}  {wait['wants']}"))
