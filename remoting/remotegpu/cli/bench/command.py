"""The command `remotegpu bench`: measures one configuration after the other, and shows the results."""

import datetime
import json
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.table import Table

from remotegpu import __version__
from remotegpu.cli import exits
from remotegpu.cli.bench.lab import Lab, Site
from remotegpu.cli.bench.matrix import Configuration, matrix, of_another_appliance
from remotegpu.cli.bench.report import Run, summary
from remotegpu.cli.bench.tables import TextTable, heading, tables
from remotegpu.cli.output import console, print_json
from remotegpu.paths import find_dist
from remotegpu.rpc.client import Access, parse_endpoint

Form = Literal["table", "markdown", "json"]


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """The options. `appliances` names a running appliance; if it is empty, one is started.

    `reference` is the address of the raw TCP peer on that appliance's machine.
    """

    appliances: Sequence[str] = ()
    access: Access = Access()
    reference: str | None = None
    everything: bool = False
    quick: bool = False
    runs: int | None = None


def bench(options: BenchOptions, form: Form) -> None:
    show(measure(options), form)


def show_saved(file: Path, form: Form) -> None:
    try:
        show(json.loads(file.read_text()), form)
    except (OSError, ValueError, KeyError) as error:
        raise exits.CliError(exits.USAGE, f"{file} is no result of `remotegpu bench --json`: {error}") from None


def show(document: dict[str, Any], form: Form) -> None:
    if form == "json":
        print_json(document)
        return
    out, found = console(), tables(document)
    out.print(heading(document) + "\n", highlight=False, markup=False)
    for each in found:
        if form == "markdown":
            out.print(each.markdown() + "\n", highlight=False, markup=False)
        else:
            out.print(_rich(each))


def measure(options: BenchOptions) -> dict[str, Any]:
    """Measures all configurations. Returns a JSON document with machine, notes and results. Raises CliError."""
    if len(options.appliances) > 1:
        raise exits.CliError(exits.USAGE, "bench measures one appliance: name one in --appliance")
    runs = options.runs or (1 if options.quick else 3)
    cpus = sorted(os.sched_getaffinity(0))
    load = os.getloadavg()
    with tempfile.TemporaryDirectory(prefix="remotegpu-bench-") as folder:
        lab = Lab(find_dist(), cpus, Path(folder))
        site = _site(options)
        if site is None:
            configurations, notes = matrix(cpus, everything=options.everything)
            tell("a training step's round trips")
            with lab.site(Configuration("direct", placement="free")) as near:
                demo = lab.demo_step_round_trips(near)
        else:
            configurations, notes = of_another_appliance(tls=site.access.ca is not None)
            notes += [] if site.reference else ["no raw TCP beside it: name a peer there with --reference"]
            # Not measured again: round trips do not depend on the place of the appliance.
            demo = None
        results = []
        for number, configuration in enumerate(configurations, 1):
            tell(f"{configuration.name} ({number} of {len(configurations)})")
            measured = [_run(lab, configuration, site, quick=options.quick) for _ in range(runs)]
            results.append(summary(configuration, measured, with_aims=site is None))
    return {
        "version": __version__,
        "measured_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": {"cpu": cpu_model(), "cpus": len(cpus), "kernel": platform.release(), "load_average": load},
        "appliance": "a software appliance of its own" if site is None else str(site.endpoint),
        "quick": options.quick,
        "runs": runs,
        "notes": notes,
        "demo_step_round_trips": demo,
        "configurations": results,
    }


def _site(options: BenchOptions) -> Site | None:
    if not options.appliances:
        return None
    endpoint = parse_endpoint(options.appliances[0])
    return Site(endpoint, options.access, options.reference)


def _run(lab: Lab, configuration: Configuration, site: Site | None, *, quick: bool) -> Run:
    if site is not None:
        return lab.measure(configuration, site, quick=quick)
    if configuration.carrier == "none":
        return lab.measure_without_wire(configuration, quick=quick)
    with lab.site(configuration) as own:
        return lab.measure(configuration, own, quick=quick)


def tell(what: str) -> None:
    print(f"remotegpu: measuring {what}", file=sys.stderr, flush=True)  # noqa: T201


def cpu_model() -> str:
    """Returns the name of the CPU from /proc/cpuinfo."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def _rich(table: TextTable) -> Table:
    rich = Table(*table.header, title=table.title, title_justify="left", box=None, pad_edge=False)
    for row in table.rows:
        rich.add_row(*row)
    return rich
