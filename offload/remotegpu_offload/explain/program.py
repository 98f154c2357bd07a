"""Runs a script and counts its calls: `remotegpu offload explain` starts this module in the user's interpreter.

The first argument is a file with a request as JSON: "config" as `dump` writes it, its "folder", and "out", the file for
the result. The other arguments are the script's command line. The script has stdin, stdout and stderr.
"""

import importlib.util
import json
import os
import runpy
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from remotegpu_offload import OURS
from remotegpu_offload.code.allowed import allowed
from remotegpu_offload.config import Config, parse
from remotegpu_offload.explain.calls import Calls, Profile
from remotegpu_offload.explain.suggest import crossing_seconds, pays, served_by_torch, suggest
from remotegpu_offload.explain.tensors import Tensors

# Functions of these packages are not counted: their time counts for the user's functions that call them, and tensors
# are counted separately.
_FRAMEWORKS = ("torch", "numpy", "jax", "tensorflow", "importlib", *OURS)


def run(script: str, config: Config) -> dict[str, Any]:
    """Runs the script with `sys.argv`. Returns the counts and the exit code."""
    is_user = _is_user(script, config)
    profile = Profile(is_user, _is_ignored)
    tensors = Tensors(is_user)
    if config.torch is not None and importlib.util.find_spec("torch") is not None:
        tensors.arm(config)
    began = time.perf_counter()
    with profile:
        code = _code_of(lambda: runpy.run_path(script, run_name="__main__"))
    seconds = time.perf_counter() - began - profile.paused
    return {
        "torch": tensors.report(),
        "exit_code": code,
        "seconds": seconds,
        "functions": [_line(calls, profile.seconds) for calls in _by_time(profile)],
        "suggestions": [asdict(found) | {"rule": found.rule} for found in suggest(profile.table, profile.seconds)],
    }


def _is_user(script: str, config: Config) -> Callable[[str], bool]:
    real = os.path.realpath(script)
    rules = allowed(config.code.page, config.code.never, str(config.folder))

    def is_user(file: str) -> bool:
        if file.startswith("<"):
            return False
        path = os.path.realpath(file)
        return path == real or rules.path(path)

    return is_user


def _is_ignored(module: str) -> bool:
    return module.partition(".")[0] in _FRAMEWORKS


def _code_of(program: Callable[[], object]) -> int:
    """Runs the program. Prints a traceback and returns the exit code, both as Python would."""
    try:
        program()
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)  # noqa: T201
        return 1
    except KeyboardInterrupt:
        return 130
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _by_time(profile: Profile) -> list[Calls]:
    return sorted(profile.table.values(), key=lambda calls: -calls.seconds)


def _line(calls: Calls, total: float) -> dict[str, Any]:
    return {
        "name": calls.name,
        "library": calls.library,
        "calls": calls.calls,
        "seconds": calls.seconds,
        "argument_bytes": calls.argument_bytes,
        "result_bytes": calls.result_bytes,
        "crossing_seconds": crossing_seconds(calls) * calls.calls,
        "obstacle": calls.obstacle,
        "pays": pays(calls, total),
        "mutates": calls.mutates,
        "caution": calls.caution,
        "tensor_seconds": calls.tensor_seconds,
        "served_by_torch": served_by_torch(calls),
    }


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    script = sys.argv[2]
    sys.argv[:] = sys.argv[2:]
    sys.path[0] = str(Path(script).resolve().parent)
    config = parse(request["config"], folder=Path(request["folder"]))
    result = run(script, config)
    Path(request["out"]).write_text(json.dumps(result))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
