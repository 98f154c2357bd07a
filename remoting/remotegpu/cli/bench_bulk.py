"""`remotegpu bench bulk`: what bounds large copies on this machine, beside copies to and from a share on it."""

import contextlib
import json
import os
from typing import Any

from rich.table import Table

from remotegpu.api.quantities import Ask
from remotegpu.cli.bench.lab import output_of
from remotegpu.cli.leasing import leases
from remotegpu.cli.local import local_appliance
from remotegpu.cli.run import remote_environment
from remotegpu.cli.show import console, print_json
from remotegpu.paths import find_dist
from remotegpu.rpc.client import Access, ApplianceClient, parse_endpoint


def bench(*, quick: bool, as_json: bool) -> None:
    result = _measure(quick=quick)
    if as_json:
        print_json(result)
        return
    table = Table("", "GB/s", "to memcpy", "CPU s/GB here", box=None, pad_edge=False)
    for rate in result:
        figures = (rate["gigabytes_per_s"], rate["to_memcpy"], rate["cpu_s_per_gigabyte"])
        table.add_row(rate["name"], *(f"{figure:.2f}" for figure in figures))
    console().print(table)


def _measure(*, quick: bool) -> list[dict[str, Any]]:
    dist = find_dist()
    with contextlib.ExitStack() as stack:
        endpoint = parse_endpoint(stack.enter_context(local_appliance(Ask())))
        client = stack.enter_context(contextlib.closing(ApplianceClient(endpoint, Access())))
        held = stack.enter_context(leases([client], Ask(), ["remotegpu", "bench"], wait=True))
        environment = remote_environment(os.environ, dist, [lease.share for lease in held], software=True)
        command = [str(dist.program("remotegpu-bench")), "bulk", *(["--quick"] if quick else [])]
        result: list[dict[str, Any]] = json.loads(output_of(command, environment))
    return result
