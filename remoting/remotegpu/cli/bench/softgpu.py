"""The command `remotegpu bench softgpu`: measures the speed of the software GPU, and CuPy on it against NumPy."""

import importlib.util
import json
import os
import subprocess
import sys
from typing import Any, Final

from rich.table import Table

from remotegpu.api.modes import Profile
from remotegpu.cli import exits
from remotegpu.cli.output import console, print_json
from remotegpu.cli.run.holding import Wish, held
from remotegpu.paths import Dist, find_dist

NO_CUPY: Final = "CuPy is not installed beside remotegpu"


def bench(*, as_json: bool) -> None:
    dist = find_dist()
    with held(Wish(profile=str(Profile.NORMAL)), os.environ, dist) as share:
        result = _measured(dist, share.environment)
    if as_json:
        print_json(result)
        return
    table = Table("", "software GPU", box=None, pad_edge=False)
    for key, value in result.items():
        table.add_row(key, f"{value:.3g}" if isinstance(value, float) else str(value))
    console().print(table)


def _measured(dist: Dist, environment: dict[str, str]) -> dict[str, Any]:
    program = str(dist.program("remotegpu-bench"))
    library = str(dist.library(dist.native))
    result: dict[str, Any] = _json_of([program, "softgpu", "--library", library], environment)
    if importlib.util.find_spec("cupy") is None:
        result["cupy"] = NO_CUPY
    else:
        # NumPy uses one thread, so that the ratio is comparable between machines.
        one_thread = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "remotegpu.cli.bench.cupy"]
        result |= _json_of(command, {**environment, **one_thread})
    return result


def _json_of(command: list[str], environment: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise exits.CliError(exits.SOFTWARE, f"{' '.join(command)} ended with code {done.returncode}, see above")
    result: dict[str, Any] = json.loads(done.stdout)
    return result
