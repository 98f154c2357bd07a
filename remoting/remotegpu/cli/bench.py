"""`remotegpu bench`: the benchmark program on a share, once per carrier."""

import contextlib
import json
import os
import subprocess
from collections.abc import Sequence
from typing import Any, Final

from rich.table import Table

from remotegpu.api import names
from remotegpu.api.objects import Ask
from remotegpu.cli import exits
from remotegpu.cli.child import StoppedError
from remotegpu.cli.leasing import leases
from remotegpu.cli.local import local_appliance
from remotegpu.cli.run import remote_environment
from remotegpu.cli.show import console, print_json
from remotegpu.paths import find_dist
from remotegpu.rpc.client import Access, ApplianceClient, parse_endpoint

CARRIERS: Final = ("direct", "grpc")


def bench(appliances: Sequence[str], access: Access, *, as_json: bool) -> None:
    if len(appliances) > 1:
        raise exits.CliError(exits.USAGE, "bench measures one appliance: name one in --appliance")
    ask = Ask()
    with contextlib.ExitStack() as stack:
        endpoint = appliances[0] if appliances else stack.enter_context(local_appliance(ask))
        client = ApplianceClient(parse_endpoint(endpoint), access)
        stack.callback(client.close)
        held = stack.enter_context(leases([client], ask, ["remotegpu", "bench"], wait=True))
        dist = find_dist()
        software = client.inventory().backend == "software"
        environment = remote_environment(os.environ, dist, [lease.share for lease in held], software=software)
        program = str(dist.program("remotegpu-bench"))
        results = {carrier: _measure(program, {**environment, names.CARRIER_ENV: carrier}) for carrier in CARRIERS}
    if as_json:
        print_json(results)
    else:
        console().print(table_of(results))


def table_of(results: dict[str, dict[str, Any]]) -> Table:
    table = Table("", *results, box=None, pad_edge=False)
    for key in dict.fromkeys(key for result in results.values() for key in result):
        values = [result.get(key, "-") for result in results.values()]
        table.add_row(key, *(f"{value:.3g}" if isinstance(value, float) else str(value) for value in values))
    return table


def _measure(program: str, environment: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run([program], env=environment, stdout=subprocess.PIPE, check=False)
    if done.returncode < 0:
        raise StoppedError(-done.returncode)
    try:
        result: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        result = {}
    if done.returncode or not result:
        raise exits.CliError(exits.SOFTWARE, f"{program} ended with code {done.returncode} and no result, see above")
    return result
