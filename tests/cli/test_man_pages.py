"""Each command has a man page that says what its help says, and that `man` can read."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from support.system import ROOT
from typer.main import get_command
from typer.testing import CliRunner

from remotegpu.cli import app, kubectl

PROGRAMS: dict[str, typer.Typer] = {"remotegpu": app.app, "kubectl remotegpu": kubectl.app}
OPTION = re.compile(r"(?<![\w-])--?[a-zA-Z][\w-]*")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("man")
    subprocess.run([sys.executable, str(ROOT / "tools" / "man_pages.py"), str(folder)], check=True, timeout=60)
    return folder


def commands(command: Any, context: Any, *words: str) -> Iterator[tuple[str, ...]]:
    yield words
    for name in getattr(command, "commands", ()):
        yield from commands(command.get_command(context, name), context, *words, name)


def everything() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Programs with the words of each of their commands."""
    for program, its in PROGRAMS.items():
        group = get_command(its)
        for words in commands(group, group.make_context(program, [], resilient_parsing=True)):
            yield program, words


def test_each_command_has_a_page_with_the_options_of_its_help(pages: Path) -> None:
    names = set()
    for program, words in everything():
        # Wide enough that nothing is broken or left out.
        shown = CliRunner().invoke(PROGRAMS[program], [*words, "--help"], env={"TERMINAL_WIDTH": "500"})
        assert shown.exit_code == 0, shown.output
        name = "-".join([*program.split(), *words]) + ".1"
        page = (pages / name).read_text().replace("\\-", "-").replace("\\fB", "").replace("\\fP", "")
        assert set(OPTION.findall(shown.output)) == set(OPTION.findall(page)), name
        names.add(name)
    assert names == {page.name for page in pages.iterdir()}
    assert {"remotegpu.1", "remotegpu-run.1", "remotegpu-appliance-init.1", "remotegpu-offload-run.1"} <= names


def test_man_reads_them_without_a_warning(pages: Path) -> None:
    groff = shutil.which("groff")
    if groff is None:
        pytest.skip("groff is not installed: it is of the Debian package groff-base")
    for page in pages.iterdir():
        done = subprocess.run([groff, "-man", "-ww", "-z", str(page)], capture_output=True, text=True, timeout=20)
        assert (done.returncode, done.stderr) == (0, ""), page.name


def test_the_page_of_run_names_what_the_program_without_python_lacks(pages: Path) -> None:
    text = (pages / "remotegpu-run.1").read_text().replace("\\-", "-")
    assert "It lacks --report, --report-file, --trace." in text
