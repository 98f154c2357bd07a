"""An appliance's metrics for Prometheus: GPU and host memory figures, against those of NVML and the kernel."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.nvml_stand_in import NvmlStandIn
from support.stand_in import StandIn
from support.system import free_port

from remotegpu.api.quantities import Ask
from remotegpu.paths import find_dist

Sample = tuple[str, frozenset[tuple[str, str]]]


def scrape(http: str) -> dict[Sample, float]:
    text = urllib.request.urlopen(f"http://{http}/metrics", timeout=5).read().decode()
    families = text_string_to_metric_families(text)
    return {(each.name, frozenset(each.labels.items())): each.value for family in families for each in family.samples}


def of_gpu(samples: dict[Sample, float]) -> dict[str, float]:
    return {name: value for (name, labels), value in samples.items() if labels == {("gpu", "0")}}


def test_figures_of_a_gpu_are_nvmls_in_base_units(tmp_path: Path) -> None:
    nvml, http = NvmlStandIn(tmp_path), f"127.0.0.1:{free_port()}"
    figures = {"utilization": 37, "memory_utilization": 12, "temperature": 81, "power": 287_500}
    nvml.set(**figures, memory_used=3 << 30)
    with StandIn(find_dist().root, *nvml.options, "--http", http, env=nvml.environment) as appliance:
        expected = {
            "remotegpu_gpu_utilization_ratio": 0.37,
            "remotegpu_gpu_memory_utilization_ratio": 0.12,
            "remotegpu_gpu_temperature_celsius": 81,
            "remotegpu_gpu_power_watts": 287.5,
            "remotegpu_gpu_memory_used_bytes": 3 << 30,
        }
        found = of_gpu(scrape(http))
        assert {name: found.get(name) for name in expected} == expected
        nvml.clear("temperature", "power", "utilization")
        absent = ("temperature_celsius", "power_watts", "utilization_ratio", "memory_utilization_ratio")
        assert not {f"remotegpu_gpu_{name}" for name in absent} & of_gpu(scrape(http)).keys()
        assert appliance.client.inventory().gpus[0].healthy


@pytest.fixture
def software(dist: Path) -> Iterator[tuple[StandIn, str]]:
    http = f"127.0.0.1:{free_port()}"
    with StandIn(dist, "--http", http) as appliance:
        yield appliance, http


def resident(pid: int) -> int:
    """Resident bytes of a process, by the kernel."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmRSS"))


def children(pid: int) -> dict[str, list[int]]:
    """Processes below `pid`, by the program that they run."""
    found: dict[str, list[int]] = {"gateway": [], "worker": []}
    for child in map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
        command = Path(f"/proc/{child}/cmdline").read_bytes()
        found["gateway" if b"remotegpu-gateway" in command else "worker"].append(child)
    return found


def test_memory_of_the_machine_by_part(software: tuple[StandIn, str]) -> None:
    appliance, http = software

    def by_part() -> dict[str, float]:
        samples = scrape(http)
        return {dict(labels)["part"]: value for (name, labels), value in samples.items() if name == METRIC}

    assert by_part().keys() == {"appliance", "gateway"}, "nothing else runs"
    tenant = appliance.lease(Ask(milli_per_gpu=500))
    sessions = [tenant.session(pid) for pid in (1, 2)]
    for session in sessions:
        session.ask("memory 0")
    below = children(appliance.process.pid)
    assert len(below["worker"]) == 2
    expected = {
        "appliance": resident(appliance.process.pid),
        "gateway": sum(map(resident, below["gateway"])),
        "worker": sum(map(resident, below["worker"])),
    }
    # The kernel's counters differ by some pages.
    assert by_part() == pytest.approx(expected, rel=0.1)


METRIC = "remotegpu_resident_memory_bytes"
