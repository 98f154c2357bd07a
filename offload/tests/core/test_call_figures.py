"""Figures that `remotegpu offload bench` computes, and its programs, which run without torch and wire as well."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import remotegpu_offload.bench
from remotegpu_offload.cli import bench

PROGRAMS = Path(remotegpu_offload.bench.__file__).parent


def said(program: str, *arguments: str) -> dict[str, float]:
    command = [sys.executable, str(PROGRAMS / program), *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_programs_measure_what_they_say(tmp_path: Path) -> None:
    assert said("paging.py") == {"import_ms": pytest.approx(0, abs=60_000), "modules": 11, "total": 23}
    assert set(said("calls.py", "--calls", "10", "--mib", "1")) == {"call_us", "argument_mbps"}
    (tmp_path / "data").write_bytes(bytes(3 << 20))
    assert all(value > 0 for value in said("reading.py", str(tmp_path / "data")).values())


def test_both_carriers_are_measured_and_distances_only_on_demand() -> None:
    names = [bench._name(found) for found in bench.configurations([0, 1], everything=False)]
    assert names == ["direct", "grpc"]
    names = [bench._name(found) for found in bench.configurations([0, 1], everything=True)]
    assert names == ["direct", "grpc", "direct, 1 ms each way", "direct, 10 ms each way"]
    assert {found.placement for found in bench.configurations([3], everything=True)} == {"same"}


def test_ratios_are_to_the_same_step_here() -> None:
    here = {"tiny_step_ms": 4.0, "heavy_step_ms": 100.0}
    found = bench._with_ratios({"tiny_step_ms": 16.0, "heavy_step_ms": 102.0, "heavy_client_cpu_ms": 1.0}, here)
    assert found["tiny_ratio"] == 4.0 and found["heavy_ratio"] == pytest.approx(1.02)
    assert found["tiny_step_here_ms"] == 4.0
    assert set(found) <= set(bench.FIGURES)


def test_medians_and_the_table() -> None:
    figures = bench._medians([{"call_us": 1.0}, {"call_us": 9.0}, {"call_us": 2.0}])
    assert figures == {"call_us": 2.0}
    document = {"configurations": [{"name": "direct", "figures": figures}, {"name": "grpc", "figures": {}}]}
    assert bench.table(document).rows == [["call_us", bench.FIGURES["call_us"], "2", ""]]


def test_every_figure_is_explained_in_the_documentation() -> None:
    page = (Path(__file__).parents[3] / "docs" / "benchmarks.md").read_text().partition("## Offload")[2]
    missing = [name for name in bench.FIGURES if name not in page and "_here" not in name]
    assert not missing
