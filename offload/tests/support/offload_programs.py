"""Runs a user's program locally, and wholly in an acceptor that cannot see the program's folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).resolve().parents[1] / "core" / "programs"
_ROOT = Path(__file__).resolve().parents[3]
# Folders of a clone: an interpreter that has only these has no packages of .venv.
_OURS = [str(_ROOT / folder) for folder in ("remoting", "offload")]
PATIENCE = 180.0

# Python's own ways to a file end here, as on another machine; status calls are not audited, but lead to these.
_BLIND = """
import os, sys
_folder = os.environ["BLIND_TO"]
_EVENTS = ("open", "sqlite3.connect", "os.listdir", "os.scandir", "os.mkdir", "os.remove", "os.rename", "os.rmdir")
def _refuse(event, arguments):
    if event in _EVENTS:
        path = arguments[0] if arguments else None
        if isinstance(path, (str, bytes)):
            path = os.fsdecode(path)
            if path == _folder or path.startswith(_folder + "/"):
                raise FileNotFoundError(2, "not on the acceptor's machine", path)
sys.addaudithook(_refuse)
"""


def connect_program(folder: Path, hidden: Path, python: str | os.PathLike[str] = sys.executable) -> Path:
    """A value for REMOTEGPU_CONNECT: starts an acceptor that cannot open anything below `hidden`."""
    blind = folder / "blind"
    blind.mkdir()
    (blind / "sitecustomize.py").write_text(_BLIND)
    program = folder / "connect"
    paths = ":".join([str(blind), *_OURS])
    program.write_text(
        f'#!/bin/sh\nexec env -i PATH="$PATH" BLIND_TO={hidden} PYTHONPATH={paths} PYTHONDONTWRITEBYTECODE=1 '
        f'{python} -P {Path(__file__).resolve().with_name("connect_here.py")} "$@"\n'
    )
    program.chmod(0o755)
    return program


class Project:
    """A copy of a program's folder, so that both runs begin with the same files."""

    def __init__(self, folder: Path, name: str | None = None, python: str | os.PathLike[str] = sys.executable) -> None:
        self.folder = folder / "project"
        self.python = python
        if name is None:
            self.folder.mkdir()
        else:
            shutil.copytree(PROGRAMS / name, self.folder, ignore=shutil.ignore_patterns("__pycache__"))
        self._outside = folder
        self.connect = connect_program(folder, self.folder, python)

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("REMOTEGPU_", "PYTHON"))}
        # What was compiled locally must not be found there.
        return kept | {"REMOTEGPU_CONNECT": str(self.connect), "PYTHONDONTWRITEBYTECODE": "1"} | dict(more or {})

    def local(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return self._run([os.fspath(self.python), *arguments], stdin)

    def offloaded(
        self, *arguments: str, stdin: str = "", split: str = "app", environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return self._run(self.launch(*arguments, split=split), stdin, environment)

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        """Starts the program offloaded, without waiting for it; the options are those of `Popen`."""
        return subprocess.Popen(self.launch(*arguments), cwd=self.folder, env=self.environment(), **options)

    def launch(self, *arguments: str, split: str = "app") -> list[str]:
        bootstrap = f"import sys; sys.path.extend({_OURS!r}); from remotegpu_offload.launch import main; main()"
        return [os.fspath(self.python), "-c", bootstrap, "--split", split, *arguments]

    def _run(
        self, command: Sequence[str], stdin: str, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment(environment),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    def files(self, below: str) -> dict[str, bytes]:
        """Returns the files in a folder of the project: names and contents."""
        root = self.folder / below
        return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}

    def take(self, below: str) -> dict[str, bytes]:
        """Returns the same, and removes the folder."""
        found = self.files(below)
        shutil.rmtree(self.folder / below, ignore_errors=True)
        return found


def same(local: subprocess.CompletedProcess[str], remote: subprocess.CompletedProcess[str]) -> None:
    """Asserts that both ended alike and printed the same, but for addresses of objects and the depth of a recursion."""
    assert _without_numbers(remote.stderr) == _without_numbers(local.stderr)
    assert remote.stdout == local.stdout
    assert remote.returncode == local.returncode


def _without_numbers(text: str) -> str:
    return re.sub(r"0x[0-9a-f]+|(?<=repeated )\d+", "N", text)
