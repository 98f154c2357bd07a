"""The user's interpreter, in which programs run: which one it is, and running a module of this project in it.

This project's interpreter may be another one, with packages that the user's lacks; the user's gets only these two
packages of the project.
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

# Code that a program given with `-c` runs first; its first arguments are `folders()`. Not by PYTHONPATH, which would
# show the user's program everything that lies next to these packages.
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
    """Returns the requested interpreter; without it the `python` of the shell, which a virtual environment sets.

    Raises CliError where there is none of that name.
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
    """Lists this project's packages that the user's interpreter gets."""
    return [str(Path(package.__file__ or "").resolve().parent) for package in (remotegpu, remotegpu_offload)]


def command(python: str, module: str, *arguments: str) -> list[str]:
    """Returns the command line that runs a module of this project in that interpreter."""
    return [python, "-c", _BOOTSTRAP, *folders(), module, *arguments]


def with_libraries() -> dict[str, str]:
    """Returns this process's environment, and in it the libraries that a module of this project needs and that
    interpreter may lack."""
    return {**os.environ, LIBRARIES_ENV: library_folders()}


def ask(python: str, module: str, *arguments: str, stdin: str = "", directory: Path | None = None) -> str:
    """Runs a module, and returns what it prints. Its stderr is the user's. Raises CliError where it fails."""
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
