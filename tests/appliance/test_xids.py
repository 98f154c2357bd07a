"""XIDs: what NVML tells of a GPU that fails, in a real appliance with the software GPU behind a stand-in for NVML."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.nvml_stand_in import NvmlStandIn
from support.stand_in import StandIn
from support.system import PROGRAMS, REMOTEGPU, free_port, until

from remotegpu.api.quantities import Ask
from remotegpu.paths import find_dist
from remotegpu.rpc import pb
from remotegpu.rpc.client import ApplianceError

DEVICE_UNAVAILABLE, ECC_UNCORRECTABLE = 46, 214
# An NVML_GPU_RECOVERY_ACTION.
NONE, GPU_RESET = 0, 1


@dataclass
class Device:
    """An appliance with one GPU, and that GPU's NVML."""

    appliance: StandIn
    nvml: NvmlStandIn
    http: str

    @property
    def gpu(self) -> pb.Gpu:
        (gpu,) = self.appliance.gpus
        return gpu

    def out(self, xid: int) -> None:
        until(lambda: not self.gpu.healthy, 10, f"XID {xid} takes the GPU out")
        assert f"XID {xid}" in self.gpu.health_message

    def counted(self) -> dict[int, float]:
        """How often each XID was seen, as Prometheus reads it."""
        text = urllib.request.urlopen(f"http://{self.http}/metrics").read().decode()
        (family,) = [each for each in text_string_to_metric_families(text) if each.name == "remotegpu_xids"]
        samples = [each for each in family.samples if each.name == "remotegpu_xids_total"]
        assert {each.labels["gpu"] for each in samples} <= {"0"}
        return {int(each.labels["xid"]): each.value for each in samples}

    @contextlib.contextmanager
    def program(self, name: str = "wait_for_ever.py") -> Iterator[subprocess.Popen[str]]:
        """One that has got its share and works on it."""
        command = [REMOTEGPU, "run", "-p", "0.25", "--", sys.executable, str(PROGRAMS / name)]
        environment = {**self.appliance.environment, "REMOTEGPU_APPLIANCE": self.appliance.endpoint}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(command, env=environment, text=True, **pipes) as program:
            assert program.stdout is not None
            try:
                assert program.stdout.readline() == "ready\n"
                yield program
            finally:
                program.kill()


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Device]:
    nvml, http = NvmlStandIn(tmp_path), f"127.0.0.1:{free_port()}"
    options = (*nvml.options, "--self-test", "--http", http)
    with StandIn(find_dist().root, *options, env=nvml.environment) as appliance:
        yield Device(appliance, nvml, http)


@pytest.mark.parametrize(("xid", "code"), [(79, DEVICE_UNAVAILABLE), (95, ECC_UNCORRECTABLE)])
def test_a_gpu_that_needs_a_reset_ends_its_sessions_and_takes_nothing_new(device: Device, xid: int, code: int) -> None:
    with device.program() as program:
        device.nvml.set(recovery=GPU_RESET)
        device.nvml.raise_xid(xid)
        output, errors = program.communicate(timeout=20)
    assert output == f"error {code}\n"
    assert f"XID {xid}" in errors, "the program is told why"
    device.out(xid)
    until(lambda: device.appliance.leased == 0, 10, "the share is free")
    with pytest.raises(ApplianceError, match=f"XID {xid}"):
        device.appliance.lease(Ask(milli_per_gpu=100))
    assert device.counted() == {xid: 1}
    assert f"XID {xid}" in device.appliance.cli("health").stdout


def test_a_contained_error_lets_sessions_go_on_and_opens_none(device: Device) -> None:
    with device.program("wait_for_a_word.py") as program:
        tenant = device.appliance.lease(Ask(milli_per_gpu=100))
        device.nvml.set(recovery=GPU_RESET)
        device.nvml.raise_xid(94)
        device.out(94)
        refusal = tenant.open_session().refusal
        assert "XID 94" in refusal
        output, errors = program.communicate("go on\n", timeout=20)
    assert (output, errors) == ("ok\n", "")


def test_what_programs_do_wrong_takes_no_gpu_out(device: Device) -> None:
    with device.program("wait_for_a_word.py") as program:
        for xid in (13, 31, 43, 45, 68, 109):
            device.nvml.raise_xid(xid)
        until(lambda: set(device.counted()) == {13, 31, 43, 45, 68, 109}, 10, "all were seen")
        assert device.gpu.healthy
        output, errors = program.communicate("go on\n", timeout=20)
    assert (output, errors) == ("ok\n", "")


def test_a_gpu_comes_back_when_the_driver_wants_no_reset_and_the_test_passes(device: Device) -> None:
    device.nvml.set(recovery=GPU_RESET)
    device.nvml.raise_xid(119)
    device.out(119)
    device.nvml.set(recovery=NONE)
    until(lambda: device.gpu.healthy, 60, "it was tested again")
    device.appliance.lease(Ask(milli_per_gpu=100)).close()


def test_without_the_drivers_word_a_reset_is_a_new_start(device: Device) -> None:
    """Older drivers do not say whether a reset is still to come."""
    device.nvml.raise_xid(120)
    device.out(120)
    watched = device.counted()
    device.nvml.raise_xid(43)
    until(lambda: device.counted() != watched, 10, "events are still told")
    assert not device.gpu.healthy


def test_a_gpu_that_nobody_watches_is_named(tmp_path: Path) -> None:
    nvml = NvmlStandIn(tmp_path)
    nvml.set(unwatched=1)
    with StandIn(find_dist().root, *nvml.options, env=nvml.environment) as appliance:
        assert appliance.gpus[0].healthy
        (check,) = [each for each in appliance.client.health().checks if each.name == "gpu events"]
        assert check.status == "warn"
