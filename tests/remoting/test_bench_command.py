"""`remotegpu bench` from end to end: what it prints and where its parts run; never how fast."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from pathlib import Path

import pytest
from support.system import REMOTEGPU, Appliance, appliance, until

from remotegpu.cli.bench.lab import Lab, on_cpus
from remotegpu.cli.bench.matrix import Configuration, matrix
from remotegpu.cli.bench.report import FIGURES
from remotegpu.cli.bench.turns import CASES
from remotegpu.paths import find_dist

pytestmark = pytest.mark.timeout(300)

CPUS = sorted(os.sched_getaffinity(0))


def test_a_quick_run_measures_every_key() -> None:
    done = subprocess.run([REMOTEGPU, "bench", "--quick", "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["machine"]["cpu"]
    assert document["demo_step_round_trips"] == 1, "the copy of the loss"
    names = [result["name"] for result in document["configurations"]]
    assert names == [configuration.name for configuration in matrix(CPUS, everything=False)[0]]
    assert bool(document["notes"]) == (len(CPUS) == 1)
    assert document["configurations"].pop()["figures"]["init_round_trips"] is None
    for result in document["configurations"]:
        assert set(result["figures"]) == set(FIGURES)
        assert None not in result["figures"].values()
        for key, reference in FIGURES.items():
            if reference is not None:
                # 0: on a busy machine half a round trip may be longer than an asynchronous launch.
                assert result["ratios"][key] >= 0


def test_an_appliance_that_runs_already_is_measured_without_pinning(own_remote: Appliance) -> None:
    done = own_remote.cli("bench", "--quick", "--json", timeout=240)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["appliance"] == own_remote.endpoint
    assert [result["placement"] for result in document["configurations"]] == ["free", "free"]
    for result in document["configurations"]:
        assert result["figures"]["rtt_us"] > 0
        assert result["ratios"]["rtt_us"] is None, "no peer was named"
        assert not result["aims"]


def test_a_distance_is_in_the_product_and_in_its_reference(tmp_path: Path) -> None:
    lab = Lab(find_dist(), sorted(os.sched_getaffinity(0)), tmp_path)
    configuration = Configuration("direct", tls=True, placement="free", delay_ms=10)
    with lab.site(configuration) as site:
        run = lab.measure(configuration, site, quick=True)
    for figures, key in ((run.figures, "rtt_us"), (run.before, "raw_tcp_rtt_us"), (run.after, "raw_tcp_rtt_us")):
        assert (figures[key] or 0) >= 20_000, "10 ms each way"
    assert (run.figures["alloc_us"] or 0) < 20_000, "no round trip"


def test_everything_at_the_appliance_s_end_stays_on_its_cpu() -> None:
    cpus = os.sched_getaffinity(0)
    allowed = {max(cpus)}
    with contextlib.ExitStack() as stack:
        with on_cpus(allowed):
            own = stack.enter_context(appliance())
        assert os.sched_getaffinity(0) == cpus, "only what is started in the block"
        stack.enter_context(own.start("endless_calls.py"))
        workers = until(own.workers, 30, "a worker runs")
        assert [os.sched_getaffinity(pid) for pid in (own.process.pid, *workers)] == [allowed] * (1 + len(workers))


def test_dividing_time_is_measured_for_each_case() -> None:
    done = subprocess.run([REMOTEGPU, "bench", "turns", "--quick", "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rates = json.loads(done.stdout)["kernels_per_second"]
    assert {name: len(each) for name, each in rates.items()} == {
        case.name: sum(not tenant.idle for tenant in case.tenants) for case in CASES
    }
    assert all(rate > 0 for each in rates.values() for rate in each)


def test_large_copies_stand_beside_what_bounds_them() -> None:
    done = subprocess.run([REMOTEGPU, "bench", "bulk", "--quick", "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rates = {rate.pop("name"): rate for rate in json.loads(done.stdout)}
    sizes = ("64 KiB", "1 MiB", "16 MiB", "64 MiB")
    copies = {f"{kind} {way} {size}" for kind in ("pinned", "pageable") for way in ("HtoD", "DtoH") for size in sizes}
    references = {f"memcpy {size}" for size in sizes} | {f"tcp x{count}" for count in (1, 2, 4, 8)}
    striped = {f"{copy}, {count} stripes" for copy in copies if copy.endswith(" 64 MiB") for count in (0, 1, 2, 4)}
    assert rates.keys() == copies | references | striped | {"page faults", "unix x1"}
    assert all(rates[name]["to_streams"] > 0 for name in striped)
    assert rates["memcpy 64 MiB"]["to_memcpy"] == 1
    assert all(value >= 0 for rate in rates.values() for value in rate.values())
