"""CUDA's own environment variables, natively and remotely."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from support.system import PROGRAMS, REMOTEGPU, Appliance, appliance

DEVICES = 4


@pytest.fixture(scope="module")
def machine() -> Iterator[Appliance]:
    with appliance("--gpus", str(DEVICES)) as it:
        yield it


@pytest.fixture(params=["native", "remote"])
def where(request: pytest.FixtureRequest) -> tuple[str, ...]:
    if request.param == "native":
        return ("--native",)
    there: Appliance = request.getfixturevalue("machine")
    return ("--appliance", there.endpoint)


def seen(where: tuple[str, ...], **settings: str) -> dict[str, Any]:
    program = [sys.executable, str(PROGRAMS / "settings_seen.py")]
    # Addresses of a native run, against the order of the devices.
    addresses = ",".join(f"0000:0{9 - i}:00.0" for i in range(DEVICES))
    environment = os.environ | {"REMOTEGPU_SOFTGPU_PCI_IDS": addresses} | settings
    run = subprocess.run(
        [REMOTEGPU, "run", *where, "-n", str(DEVICES), "-p", "0.25", "--", *program],
        capture_output=True, text=True, timeout=60, env=environment,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    value: dict[str, Any] = json.loads(run.stdout)
    return value


def test_what_holds_without_settings(where: tuple[str, ...]) -> None:
    found = seen(where)
    assert (found["launch"], found["wait"]) == (0, 700), "a launch does not wait for its kernel"
    assert found["loading"] == "LAZY_LOADING"
    assert len(found["cuda"]) == DEVICES and found["cuda"] == found["nvml"]


def test_all_settings_at_once(where: tuple[str, ...]) -> None:
    found = seen(
        where,
        CUDA_LAUNCH_BLOCKING="1",
        CUDA_MODULE_LOADING="EAGER",
        CUDA_DEVICE_ORDER="PCI_BUS_ID",
        CUDA_DEVICE_MAX_CONNECTIONS="1",
    )
    assert (found["launch"], found["wait"]) == (700, 700), "the launch says how its kernel ended"
    assert found["loading"] == "EAGER_LOADING"
    assert len(found["cuda"]) == DEVICES and found["cuda"] == sorted(found["cuda"]) == found["nvml"]
