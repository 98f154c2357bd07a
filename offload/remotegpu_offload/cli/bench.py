"""`remotegpu offload bench`: measures the cost of each mode, with the appliance and the program on this machine."""

import datetime
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import remotegpu_offload
from remotegpu import __version__
from remotegpu.api import names
from remotegpu.cli import exits
from remotegpu.cli.bench.command import Form, cpu_model, tell
from remotegpu.cli.bench.lab import Lab, Site, on_cpus, output_of
from remotegpu.cli.bench.matrix import ONE_CPU, Configuration, CpuPlacement, ends
from remotegpu.cli.bench.tables import TextTable
from remotegpu.cli.output import console, print_json
from remotegpu.paths import find_dist
from remotegpu_offload.cli import interpreter

_PROGRAMS: Final = Path(remotegpu_offload.__file__).resolve().parent / "bench"
_ENVIRONMENTS: Final = ("first", "second")
# The meaning of each figure, in the order of the table. `here` means this machine's CPU, without a connection.
FIGURES: Final = {
    "cold_start_s": "from `offload run` to the first result of torch",
    "tiny_step_ms": "a step of the digits network",
    "tiny_step_here_ms": "the same here",
    "tiny_ratio": "their ratio",
    "tiny_round_trips": "round trips of it",
    "tiny_operations": "operations of it",
    "tiny_bytes_out": "bytes to the acceptor of it",
    "tiny_bytes_in": "bytes back of it",
    "client_cpu_us_per_operation": "processor time here for each operation of it",
    "addition_cpu_us": "processor time here for one addition",
    "heavy_step_ms": "a step of six layers of 1024, batch 256",
    "heavy_step_here_ms": "the same here",
    "heavy_ratio": "their ratio",
    "call_us": "a call of a function that does nothing",
    "argument_mbps": "MB/s of a large argument",
    "switch_s": "a move to another acceptor",
    "switch_s_per_gib": "more for each GiB on the device",
    "file_mbps": "MB/s of a file of this machine, read there",
    "file_again_mbps": "the same file again",
    "code_faults": "requests for source, eleven modules",
    "import_ms": "importing them there",
}


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """The options of the benchmark.

    `python` has torch. `everything` adds networks with 1 and 10 ms of delay. `runs`: None means 3 runs, or 1 if
    `quick`.
    """

    python: str | None = None
    everything: bool = False
    quick: bool = False
    runs: int | None = None


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The numbers of steps and calls in one run, and the MiB of data."""

    tiny: int
    heavy: int
    calls: int
    mib: int

    def far(self) -> "_Sizes":
        """Returns smaller sizes for a distant appliance, where each answer takes time."""
        return _Sizes(self.tiny // 2, self.heavy // 2, self.calls // 5, self.mib // 4)


def bench(options: BenchOptions, form: Form) -> None:
    """Measures and prints the figures. Raises CliError if a program fails."""
    show(measure(options), form)


def show(document: Mapping[str, Any], form: Form) -> None:
    if form == "json":
        print_json(document)
        return
    out = console()
    out.print(_heading(document) + "\n", highlight=False, markup=False, soft_wrap=True)
    out.print(table(document).markdown(), highlight=False, markup=False, soft_wrap=True)


def table(document: Mapping[str, Any]) -> TextTable:
    """Returns a table with one row for each figure and one column for each configuration."""
    configurations = document["configurations"]
    rows = []
    for name, meaning in FIGURES.items():
        values = [configuration["figures"].get(name) for configuration in configurations]
        if any(value is not None for value in values):
            rows.append([name, meaning, *("" if value is None else f"{value:.4g}" for value in values)])
    return TextTable("offload", ["", "", *(configuration["name"] for configuration in configurations)], rows)


def measure(options: BenchOptions) -> dict[str, Any]:
    """Returns the document: the figures, and the machine on which they were measured."""
    python = interpreter.chosen(options.python)
    _require_torch(python)
    runs = options.runs or (1 if options.quick else 3)
    sizes = _Sizes(20, 3, 100, 64) if options.quick else _Sizes(80, 8, 400, 128)
    cpus = sorted(os.sched_getaffinity(0))
    load = os.getloadavg()
    with tempfile.TemporaryDirectory(prefix="remotegpu-bench-") as folder:
        lab = Lab(find_dist(), cpus, Path(folder))
        measuring = _Measuring(lab, python, sizes)
        results = []
        for configuration in configurations(cpus, everything=options.everything):
            tell(configuration.name)
            found, local = measuring.runs(configuration, runs)
            results.append({"name": _name(configuration), "figures": _with_ratios(_medians(found), _medians(local))})
    return {
        "version": __version__,
        "measured_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": {"cpu": cpu_model(), "cpus": len(cpus), "kernel": platform.release(), "load_average": load},
        "python": python,
        "quick": options.quick,
        "runs": runs,
        "notes": [] if len(cpus) > 1 else [ONE_CPU],
        "configurations": results,
    }


def configurations(cpus: Sequence[int], *, everything: bool) -> list[Configuration]:
    """Returns the configurations: both carriers on one machine, and with `everything` the faster one at a distance."""
    placement: CpuPlacement = "split" if len(cpus) > 1 else "same"
    found = [Configuration("direct", placement=placement), Configuration("grpc", placement=placement)]
    if everything:
        found += [Configuration("direct", placement=placement, delay_ms=delay) for delay in (1, 10)]
    return found


class _Measuring:
    """Runs the benchmark programs in the user's interpreter, with or without an appliance."""

    def __init__(self, lab: Lab, python: str, sizes: _Sizes) -> None:
        self._lab = lab
        self._python = python
        self._sizes = sizes
        self._config = lab.folder / "remotegpu.yaml"
        rules = "[{torch: {devices: [cuda]}}, {function: __main__.nothing}]"
        self._config.write_text(
            f"version: 1\noffload: {rules}\ncode: {{page: [{json.dumps(str(_PROGRAMS))}]}}\n"
            f"files: {{read: [{json.dumps(str(lab.folder / 'data'))}]}}\nenv: {{pass: [OMP_NUM_THREADS]}}\n"
        )
        (lab.folder / "data").write_bytes(os.urandom(sizes.mib << 20))

    def local(self) -> dict[str, float]:
        """Measures the steps on this machine's CPU, on the CPU that the acceptor would use."""
        _, far = ends("split" if len(self._lab.cpus) > 1 else "same", self._lab.cpus)
        with on_cpus(far):
            program, *options = _step_options("cpu", self._sizes)
            environment = {**os.environ, **_ONE_THREAD}
            return _steps(self._said([self._python, str(_PROGRAMS / program), *options], environment))

    def runs(self, configuration: Configuration, count: int) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
        """Measures a configuration `count` times, alternating with the steps on this machine. Returns both lists of
        figures.

        With a network delay, it measures only steps and calls, with smaller sizes.
        """
        offered = [word for name in _ENVIRONMENTS for word in ("--offload", f"{name}={self._python}:cpu")]
        with self._lab.site(configuration, *offered) as site:
            near, _ = ends(configuration.placement, self._lab.cpus)
            remote, local = [], []
            for _ in range(count):
                local.append(self.local())
                with on_cpus(near):
                    remote.append(self._measured(configuration, site))
            return remote, local

    def _measured(self, configuration: Configuration, site: Site) -> dict[str, float]:
        since = time.time()
        sizes = self._sizes.far() if configuration.delay_ms else self._sizes
        steps = _steps(self._offloaded(configuration, site, *_step_options("cuda", sizes), "--since", str(since)))
        operations = steps.get("tiny_operations")
        if operations:
            steps["client_cpu_us_per_operation"] = steps.pop("tiny_client_cpu_ms") / operations * 1e3
        calls = ["calls.py", "--calls", str(sizes.calls), "--mib", str(sizes.mib // 4)]
        found = steps | self._offloaded(configuration, site, *calls)
        if configuration.delay_ms:
            return found
        found |= self._offloaded(configuration, site, "moving.py", str(self._sizes.mib), *reversed(_ENVIRONMENTS))
        found |= self._offloaded(configuration, site, "reading.py", str(self._lab.folder / "data"), whole=True)
        found |= self._offloaded(configuration, site, "paging.py", whole=True)
        counters = json.loads(self._stats.read_text())["counters"]
        return found | {"code_faults": counters["served"].get("CODE", 0)}

    @property
    def _stats(self) -> Path:
        return self._lab.folder / "stats.json"

    def _offloaded(
        self, configuration: Configuration, site: Site, program: str, *arguments: str, whole: bool = False
    ) -> dict[str, Any]:
        command = [*_REMOTEGPU, "offload", "run", "--appliance", str(site.endpoint), "--python", self._python]
        command += ["--ca", str(site.access.ca)] if site.access.ca else []
        command += ["--config", str(self._config), *(["--split", "app"] if whole else [])]
        environment = {
            **os.environ,
            names.CARRIER_ENV: configuration.carrier,
            names.STATS_ENV: str(self._stats),
            **_ONE_THREAD,
        }
        return self._said([*command, str(_PROGRAMS / program), *arguments], environment)

    def _said(self, command: Sequence[str], environment: Mapping[str, str]) -> dict[str, Any]:
        """Runs a program, and returns the JSON of the last line that it prints."""
        lines = output_of(command, environment).splitlines()
        try:
            found: dict[str, Any] = json.loads(lines[-1])
        except (ValueError, IndexError):
            raise exits.CliError(exits.SOFTWARE, f"{' '.join(command)} printed no result, see above") from None
        return found


# Each end runs on one CPU.
_ONE_THREAD: Final = {"OMP_NUM_THREADS": "1"}
_REMOTEGPU: Final = (sys.executable, "-m", "remotegpu.cli")


def _require_torch(python: str) -> None:
    found = output_of(
        [python, "-c", "import importlib.util; print(importlib.util.find_spec('torch') is not None)"], os.environ
    )
    if found.strip() != "True":
        raise exits.CliError(
            exits.USAGE, f"{python} has no torch, which is measured: name an interpreter that has it in --python"
        )


def _step_options(device: str, sizes: _Sizes) -> list[str]:
    return ["steps.py", device, "--tiny", str(sizes.tiny), "--heavy", str(sizes.heavy)]


def _steps(said: Mapping[str, Any]) -> dict[str, float]:
    """Renames the figures that `steps.py` printed."""
    found = {"cold_start_s": said["first_result_s"], "addition_cpu_us": said["addition_cpu_us"]}
    for kind in ("tiny", "heavy"):
        found |= {f"{kind}_{name}": value for name, value in said.get(kind, {}).items()}
    return {name: value for name, value in found.items() if value is not None}


def _with_ratios(found: Mapping[str, float], local: Mapping[str, float]) -> dict[str, float]:
    result = dict(found)
    for kind in ("tiny", "heavy"):
        result[f"{kind}_step_here_ms"] = local[f"{kind}_step_ms"]
        result[f"{kind}_ratio"] = found[f"{kind}_step_ms"] / local[f"{kind}_step_ms"]
    return {name: value for name, value in result.items() if name in FIGURES}


def _medians(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def _name(configuration: Configuration) -> str:
    return f"{configuration.transport}{f', {configuration.delay_ms} ms each way' if configuration.delay_ms else ''}"


def _heading(document: Mapping[str, Any]) -> str:
    machine = document["machine"]
    load = "/".join(f"{value:.1f}" for value in machine["load_average"])
    rough = "; quick, so rough" if document["quick"] else ""
    return (
        f"remotegpu {document['version']} on {machine['cpu']}, {machine['cpus']} CPUs, Linux {machine['kernel']}, "
        f"load {load}, {document['measured_at']}; an appliance of its own with CPU acceptors of {document['python']}; "
        f"medians of {document['runs']} runs{rough}"
    )
