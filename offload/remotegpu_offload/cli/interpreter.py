"""Finds the user's interpreter, in which programs run, and runs modules of this project in it.

Remotegpu's own interpreter may be another one, with packages that the user's lacks. The user's interpreter receives
only the packages `remotegpu` and `remotegpu_offload`.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import remotegpu
import remotegpu_offload
from remotegpu.cli import exits
from remotegpu_offload.importing.libraries import LIBRARIES_ENV, library_folders

# Code that a program given with `-c` runs first; `folders()` are its first arguments. PYTHONPATH would not do: it would
# show the user's program every package that lies next to these two.
LOADING: Final = """
import importlib.util, sys
for folder in sys.argv[1:3]:
    spec = importlib.util.spec_from_file_location(
        folder.rpartition("/")[2], folder + "/__init__.py", submodule_search_locations=[folder])
    sys.modules[spec.name] = package = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
del sys.argv[1:3]
"""
_BOOTSTRAP: Final = f"""{LOADING}
import os, runpy
module = sys.argv[1]
if os.environ.get("REMOTEGPU_OFFLOAD_LIBRARIES"):
    from remotegpu_offload.importing.libraries import install_finder
    install_finder()
sys.argv[:] = [module, *sys.argv[2:]]
sys.path[0] = ""
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


def chosen(python: str | None) -> str:
    """Returns the path of the requested interpreter. With None: the shell's `python`, which a virtual environment sets.

    Raises CliError if no such program exists.
    """
    if python is None:
        return shutil.which("python") or sys.executable
    found = shutil.which(python)
    if found is None:
        raise exits.CliError(
            exits.NOT_FOUND, f"--python {python}: there is no such interpreter; give its path, as .venv/bin/python"
        )
    return found


def folders() -> list[str]:
    """Returns the folders of this project's packages that the user's interpreter receives."""
    return [str(Path(package.__file__ or "").resolve().parent) for package in (remotegpu, remotegpu_offload)]


def command(python: str, module: str, *arguments: str) -> list[str]:
    """Returns the command line that runs a module of this project in that interpreter."""
    return [python, "-c", _BOOTSTRAP, *folders(), module, *arguments]


def with_libraries() -> dict[str, str]:
    """Returns this process's variables, and the folders of libraries that modules of this project need.

    The user's interpreter may lack these libraries.
    """
    return {**os.environ, LIBRARIES_ENV: library_folders()}


def ask(python: str, module: str, *arguments: str, stdin: str = "", directory: Path | None = None) -> str:
    """Runs a module with `stdin`, and returns its output; the user sees its stderr. Raises CliError if it fails."""
    try:
        done = subprocess.run(
            command(python, module, *arguments),
            input=stdin,
            stdout=subprocess.PIPE,
            text=True,
            cwd=directory,
            check=False,
        )
    except OSError as error:
        raise exits.CliError(
            exits.NOT_EXECUTABLE, f"{python} cannot be started ({error.strerror}): give another with --python"
        ) from None
    if done.returncode:
        raise exits.CliError(
            exits.SOFTWARE,
            f"{python} could not run {module} (exit code {done.returncode}; what it said stands above): "
            "it must be Python 3.11 or newer",
        )
    return done.stdout
