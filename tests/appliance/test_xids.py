"""XIDs: what NVML tells of a GPU that fails, in a real appliance with the software GPU behind a stand-in for NVML."""

from __future__ import annotations

import asyncio
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
from support.system import PROGRAMS, REMOTEGPU, Watch, free_port, until

from remotegpu.api.failures import ApplianceError
from remotegpu.api.quantities import Ask
from remotegpu.appliance.backends.xids import Effect, classify
from remotegpu.appliance.gpus.hardware import SelfTest
from remotegpu.appliance.gpus.health import GpuHealth
from remotegpu.appliance.shares.allocation import Capacity
from remotegpu.paths import find_dist
from remotegpu.rpc import pb

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
        pipe = subprocess.PIPE
        with subprocess.Popen(command, env=environment, text=True, stdin=pipe, stdout=pipe, stderr=pipe) as program:
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
        raised = Watch()
        output, errors = program.communicate(timeout=20)
    assert output == f"error {code}\n"
    assert raised.within(10)
    assert f"XID {xid}" in errors, "the program is told why"
    device.out(xid)
    until(lambda: device.appliance.leased == 0, 10, "the share is free")
    assert raised.within(10)
    with pytest.raises(ApplianceError, match=f"XID {xid}"):
        device.appliance.lease(Ask(milli_per_gpu=100))
    assert device.counted() == {xid: 1}
    assert f"XID {xid}" in device.appliance.cli("doctor").stdout


def test_a_contained_error_lets_sessions_go_on_and_opens_none(device: Device) -> None:
    with device.program("wait_for_a_word.py") as program:
        tenant = device.appliance.lease(Ask(milli_per_gpu=100))
        device.nvml.set(recovery=GPU_RESET)
        device.nvml.raise_xid(94)
        device.out(94)
        table = device.appliance.client.hello().versions.table_hash
        refusal = tenant.open_session(table_hash=table).refusal
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


def test_a_gpu_that_nobody_watches_is_named(tmp_path: Path) -> None:
    nvml = NvmlStandIn(tmp_path)
    nvml.set(unwatched=1)
    with StandIn(find_dist().root, *nvml.options, env=nvml.environment) as appliance:
        assert appliance.gpus[0].healthy
        (check,) = [each for each in appliance.client.health().checks if each.name == "gpu events"]
        assert check.status == "warn"


# The immediate action of NVIDIA's catalogue (see xids.py) for what a shared GPU must not survive unnoticed, and what
# NVIDIA's device plugin ignores.
RESET_GPU_OR_RESTART = {46, 48, 62, 64, 79, 95, 110, 119, 120, 136, 140, 143, 155, 156, 158}
IGNORED_BY_THE_DEVICE_PLUGIN = {13, 31, 43, 45, 68, 109}


def test_the_classes_of_xids() -> None:
    of = {number: classify(number).effect for number in range(300)}
    assert {number for number, effect in of.items() if effect is Effect.RESET} == RESET_GPU_OR_RESTART
    assert {number for number, effect in of.items() if effect is Effect.UNFIT} == {63, 74, 92, 94}
    assert {of[number] for number in IGNORED_BY_THE_DEVICE_PLUGIN - {109}} == {Effect.PROGRAM}
    assert of[109] is Effect.SUSPECT, "a program can raise it, and so can a GPU that needs a reset"
    assert of[299] is Effect.SUSPECT


class Health:
    """A GPU whose driver and self-test say what a test wants."""

    def __init__(self, *, tells_recovery: bool) -> None:
        self.gpus = [Capacity(5), Capacity(5)]
        self.problem = ""
        self.result = SelfTest()
        self.tests = 0
        self.of = GpuHealth(
            self.gpus,
            problem=lambda gpu: "" if gpu else self.problem,
            test=self._test,
            tells_recovery=lambda _gpu: tells_recovery,
            retest_seconds=0,
        )

    async def _test(self, _gpu: int) -> SelfTest:
        self.tests += 1
        return self.result


def test_an_unfit_gpu_comes_back_by_a_passed_test_and_the_drivers_silence() -> None:
    async def story() -> None:
        health = Health(tells_recovery=True)
        gpu, other = health.gpus
        health.of.strike(0, classify(94))
        assert ("XID 94" in gpu.unhealthy, other.unhealthy) == (True, "")
        health.problem = "reset the GPU"
        assert not await health.of.look_at(0)
        assert "XID 94" in gpu.unhealthy
        assert "reset the GPU" in gpu.unhealthy
        assert health.tests == 0
        health.problem, health.result = "", SelfTest(problem="wrong values")
        assert not await health.of.look_at(0)
        assert "wrong values" in gpu.unhealthy
        health.result = SelfTest()
        assert await health.of.look_at(0)
        assert gpu.unhealthy == ""

    asyncio.run(story())


@pytest.mark.parametrize("tells", [True, False])
def test_a_gpu_to_be_reset_needs_the_drivers_word_or_a_new_start(tells: bool) -> None:
    async def story() -> None:
        health = Health(tells_recovery=tells)
        health.of.strike(0, classify(79))
        health.of.strike(0, classify(94))
        assert "XID 79" in health.gpus[0].unhealthy, "the gravest counts"
        assert await health.of.look_at(0) is tells
        assert bool(health.gpus[0].unhealthy) is not tells

    asyncio.run(story())


def test_a_suspect_is_tested_and_a_program_is_not() -> None:
    async def story() -> None:
        health = Health(tells_recovery=True)
        for xid, tests in ((13, 0), (109, 1), (299, 2)):
            health.of.strike(0, classify(xid))
            assert not await health.of.look_at(0)
            assert (health.gpus[0].unhealthy, health.tests) == ("", tests)
        health.result = SelfTest(problem="wrong values")
        health.of.strike(0, classify(109))
        await health.of.look_at(0)
        assert health.gpus[0].unhealthy == "wrong values"

    asyncio.run(story())
