"""The command `remotegpu bench bulk`: measures large copies to and from a share, and the limits of this machine."""

import contextlib
import json
import os
from typing import Any, Final

from rich.table import Table

from remotegpu.api import names
from remotegpu.api.quantities import Ask
from remotegpu.cli.bench.lab import output_of
from remotegpu.cli.output import console, print_json
from remotegpu.cli.run.holding import Wish, held
from remotegpu.cli.run.local import local_appliance
from remotegpu.paths import find_dist

# The numbers of connections for copies; 0: only the connection of the session.
_STRIPES: Final = (0, 1, 2, 4)


def bench(*, quick: bool, as_json: bool) -> None:
    result = _measure(quick=quick)
    if as_json:
        print_json(result)
        return
    table = Table("", "GB/s", "to memcpy", "CPU s/GB here", "to raw streams", box=None, pad_edge=False)
    for rate in result:
        figures = [rate["gigabytes_per_s"], rate["to_memcpy"], rate["cpu_s_per_gigabyte"]]
        figures += [rate["to_streams"]] if "to_streams" in rate else []
        table.add_row(rate["name"], *(f"{figure:.2f}" for figure in figures))
    console().print(table)


def _measure(*, quick: bool) -> list[dict[str, Any]]:
    dist = find_dist()
    with contextlib.ExitStack() as stack:
        wish = Wish(appliances=(stack.enter_context(local_appliance(Ask())),), name=("remotegpu", "bench"))
        environment = stack.enter_context(held(wish, os.environ, dist)).environment
        command = [str(dist.program("remotegpu-bench")), "bulk", *(["--quick"] if quick else [])]
        result: list[dict[str, Any]] = json.loads(output_of(command, environment))
        for count in _STRIPES:
            by_tcp = {names.CARRIER_ENV: "direct", names.STRIPES_ENV: str(count)}
            result += _striped(json.loads(output_of(command, environment | by_tcp)), count)
    return result


def _striped(run: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """Returns the largest copies of a run with `count` stripes, relative to the same number of raw TCP streams."""
    raw = next(rate for rate in run if rate["name"] == f"tcp x{max(count, 1)}")
    return [
        rate
        | {
            "name": f"{rate['name']}, {count} stripes",
            "to_streams": rate["gigabytes_per_s"] / raw["gigabytes_per_s"],
        }
        for rate in run
        if rate["name"].startswith(("pageable", "pinned")) and rate["name"].endswith(" 64 MiB")
    ]
