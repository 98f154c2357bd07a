"""Writes a man page for each command from its `--help`: python tools/man_pages.py FOLDER

`remotegpu-run.1` describes two programs, `remotegpu run` and `remotegpu-run`. The library click-man does not support
Typer's commands, which are no longer Click's.
"""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import typer
from typer.main import get_command

from remotegpu import __version__ as version
from remotegpu.cli import app, kubectl
from remotegpu.cli.run import plain as plain_run

PROGRAMS: dict[str, typer.Typer] = {"remotegpu": app.app, "kubectl remotegpu": kubectl.app}


def pages() -> Iterator[tuple[str, str]]:
    """Yields the names and contents of all pages."""
    for program, commands in PROGRAMS.items():
        yield from _pages(get_command(commands), program, None)


def _pages(command: Any, name: str, parent: Any) -> Iterator[tuple[str, str]]:
    context = command.context_class(command, info_name=name, parent=parent, **command.context_settings)
    below = [command.get_command(context, each) for each in getattr(command, "commands", ())]
    page = _page_of(context.command_path)
    yield f"{page}.1", "\n".join(_lines(context, page, below)) + "\n"
    for each in below:
        yield from _pages(each, each.name, context)


def _lines(context: Any, page: str, below: list[Any]) -> Iterator[str]:
    command, path = context.command, context.command_path
    yield f'.TH "{_text(page.upper())}" 1 "" "remotegpu {version}" "remotegpu"'
    yield from _section("NAME", [f"{_text(page)} \\- {_text(_summary(command))}"])
    usage = " ".join(command.collect_usage_pieces(context))
    yield from _section("SYNOPSIS", [f"{_bold(path)} {_text(usage)}"])
    yield from _section("DESCRIPTION", [_text(command.help)])
    for title, kind in (("ARGUMENTS", "argument"), ("OPTIONS", "option")):
        records = [
            each.get_help_record(context) for each in command.get_params(context) if each.param_type_name == kind
        ]
        yield from _section(title, _list((_bold(names), _text(what)) for names, what in filter(None, records)))
    names = [f"{_bold(_page_of(f'{path} {each.name}'))}(1)" for each in below]
    yield from _section("COMMANDS", _list(zip(names, (_text(each.help) for each in below), strict=True)))
    if command.epilog:
        yield from _section("EXIT STATUS", [_text(command.epilog)])
    if page == "remotegpu-run":
        yield from _section("WITHOUT PYTHON", [_text(_without_python(command))])
    if context.parent:
        yield from _section("SEE ALSO", [f"{_bold(_page_of(context.parent.command_path))}(1)"])


def _without_python(command: Any) -> str:
    names = [max(each.opts, key=len) for each in command.params if each.param_type_name == "option"]
    lacking = ", ".join(name for name in names if name not in plain_run.OPTIONS)
    return f"The program remotegpu-run does the same without Python, on appliances that are named. It lacks {lacking}."


def _page_of(path: str) -> str:
    return path.replace(" ", "-")


def _summary(command: Any) -> str:
    first: str = command.help.partition(". ")[0]
    return first.rstrip(".")


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    if text := list(lines):
        yield from (f'.SH "{title}"', *text)


def _list(items: Iterable[tuple[str, str]]) -> Iterator[str]:
    for term, what in items:
        yield from (".TP", term, what)


def _bold(text: str) -> str:
    return rf"\fB{_text(text)}\fP"


def _text(text: str) -> str:
    """Returns the text as one line of roff. Escapes a dot or apostrophe at its beginning, which would be a request."""
    line = " ".join(text.split()).replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{line}" if line[:1] in {".", "'"} else line


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in pages():
        (folder / name).write_text(page)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
