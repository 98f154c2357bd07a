"""The self-test at the start, on the real worker and the software GPU, and on a driver that is none."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from support.stand_in import StandIn
from support.system import appliance

MIB = 1 << 20


@pytest.mark.parametrize(("profile", "overhead"), [("normal", 0), ("hostile", 64)])
def test_a_good_gpu_passes_and_its_contexts_are_measured(profile: str, overhead: int) -> None:
    with appliance("--gpus", "2", profile=profile, memory_mib=1024) as it:
        listed = json.loads(it.cli("doctor", "--json").stdout)
        found = {check["name"]: (check["status"], check["message"]) for check in listed["checks"]}
        expected = ("ok", f"self-test passed, a context takes {overhead} MiB")
        assert found["gpu 0"] == found["gpu 1"] == expected
        gpus = it.inventory()["appliances"][0]["gpus"]
        assert [gpu["shareable_bytes"] for gpu in gpus] == [1024 * MIB] * 2, "1.0 is real, contexts come on top"
        assert len({gpu["uuid"] for gpu in gpus}) == 2


def test_a_gpu_that_fails_takes_no_lease_and_says_why(dist: Path) -> None:
    """The stand-in's libcuda.so.1 is an empty file: the worker stands in for it, the self-test does not."""
    with StandIn(dist, "--self-test") as it:
        health = it.cli("doctor")
        assert health.returncode == 69
        assert "gpu 0: self-test: " in health.stdout
        refused = it.cli("run", "-p", "0.5", "--", "true")
        assert refused.returncode == 75
        assert "gpu 0" in refused.stderr and "self-test" in refused.stderr, "the GPU, and what it failed"
        assert refused.stderr.count("\n") == 1


def test_a_driver_that_cannot_be_loaded_is_reported(dist: Path) -> None:
    """Here the real worker looks at the empty file."""
    from remotegpu.paths import find_dist

    worker, driver = find_dist().program("remotegpu-worker"), dist / "native" / "libcuda.so.1"
    command: list[str | Path] = [worker, "--snapshot", "--driver", driver]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0
    assert "libcuda.so.1" in done.stderr
