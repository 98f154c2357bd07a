"""The back end for real GPUs, with the software GPU's libcuda and NVML in the place of NVIDIA's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from support.stand_in import StandIn, Tenant
from support.system import PROGRAMS

from remotegpu.api.quantities import Ask
from remotegpu.paths import find_dist
from remotegpu.rpc import pb

GIB = 1 << 30


@pytest.fixture(scope="module")
def real() -> Iterator[StandIn]:
    dist = find_dist()
    driver = os.path.relpath(dist.native / "libcuda.so.1")
    options = ("--backend", "cuda", "--driver", driver, "--self-test", "--sessions-per-gpu", "4")
    with StandIn(dist.root, *options, env={"LD_LIBRARY_PATH": str(dist.native)}) as it:
        yield it


def test_inventory_and_health_come_from_the_driver(real: StandIn) -> None:
    inventory = real.client.inventory()
    assert inventory.backend == "cuda"
    (gpu,) = inventory.gpus
    assert gpu.healthy
    assert gpu.total_bytes == 8 * GIB
    overhead = gpu.total_bytes - gpu.shareable_bytes
    assert 0 <= overhead < GIB, "contexts of the software GPU are small"
    assert overhead % 4 == 0, "set aside for each of four sessions"
    assert real.cli("doctor").returncode == 0


def test_a_program_runs_on_a_share(real: StandIn) -> None:
    done = real.cli("run", "-p", "0.25", "--", sys.executable, str(PROGRAMS / "vector_add.py"))
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr + real.log


def test_nothing_of_software_is_set_for_a_real_gpu(real: StandIn) -> None:
    seen = real.cli("run", "-p", "0.25", "--", "env").stdout
    assert "REMOTEGPU_SHARES=" in seen
    assert "CUPY_COMPILE_WITH_PTX" not in seen
    assert "PTXAS" not in seen


def test_readings_are_those_of_nvml(real: StandIn) -> None:
    tenant = real.lease(Ask(milli_per_gpu=250))
    state = device_state(tenant)
    expected = subprocess.run(
        [sys.executable, "-c", NVML],
        env=real.environment,
        check=True,
        capture_output=True,
        text=True,
    )
    given = json.loads(expected.stdout)
    for field, value in given.items():
        assert (getattr(state, field) if state.HasField(field) else None) == value
    assert state.memory_used_bytes == 0
    tenant.close()


def device_state(tenant: Tenant) -> pb.DeviceState:
    granted = tenant.granted
    request = pb.DeviceStateRequest(lease_id=granted.lease_id, lease_secret=granted.lease_secret)
    reply: pb.DeviceStateReply = tenant.appliance.client._stub.DeviceState(request)
    return reply.devices[0]


# Asked without our code; null for what this NVML does not know.
NVML = """
import json, pynvml
pynvml.nvmlInit()
h = pynvml.nvmlDeviceGetHandleByIndex(0)
def ask(function, *arguments):
    try:
        return function(h, *arguments)
    except pynvml.NVMLError:
        return None
rates = ask(pynvml.nvmlDeviceGetUtilizationRates)
print(json.dumps({
    "gpu_utilization_percent": rates and rates.gpu,
    "memory_utilization_percent": rates and rates.memory,
    "temperature_celsius": ask(pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU),
    "power_milliwatt": ask(pynvml.nvmlDeviceGetPowerUsage),
    "power_limit_milliwatt": ask(pynvml.nvmlDeviceGetEnforcedPowerLimit),
    "sm_clock_mhz": ask(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM),
    "memory_clock_mhz": ask(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_MEM),
}))
"""
