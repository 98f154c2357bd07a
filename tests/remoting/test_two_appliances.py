"""One process with shares of two appliances sees them as two devices."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from support.system import PROGRAMS, REMOTEGPU, Appliance, appliance, line, until


def command(program: str, *appliances: Appliance) -> list[str]:
    where = ",".join(a.endpoint for a in appliances)
    share = ["-n", "2", "-p", "0.25"]
    name, *arguments = program.split()
    return [REMOTEGPU, "run", "--appliance", where, *share, "--", sys.executable, str(PROGRAMS / name), *arguments]


PROGRAMS_FOR_TWO = ("two_devices.py", "numba_two_devices.py")


def check(program: str, *appliances: Appliance) -> None:
    run = subprocess.run(command(program, *appliances), capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stdout) == (0, "ok\n"), (program, run.stderr)


def test_devices_of_two_appliances_work_together() -> None:
    with appliance() as one, appliance(profile="hostile") as other:
        for program in PROGRAMS_FOR_TWO:
            check(program, one, other)


@pytest.mark.parametrize("profile", ["normal", "hostile"])
def test_two_devices_of_one_appliance_work_together(profile: str) -> None:
    with appliance("--gpus", "2", profile=profile) as one:
        for program in PROGRAMS_FOR_TWO:
            check(program, one)


@pytest.mark.parametrize("program", PROGRAMS_FOR_TWO)
def test_two_devices_natively(program: str) -> None:
    native = [REMOTEGPU, "run", "--native", "-n", "2", "--", sys.executable, str(PROGRAMS / program)]
    run = subprocess.run(native, capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stdout) == (0, "ok\n"), run.stderr


def test_words_of_a_device_are_seen_after_a_wait_for_another_natively() -> None:
    program = [sys.executable, str(PROGRAMS / "waits_elsewhere.py"), "device"]
    run = subprocess.run([REMOTEGPU, "run", "--native", "-n", "2", "--", *program], capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (0, "seen\n"), run.stderr


@pytest.mark.parametrize("carrier", ["auto", "direct", "grpc"])
def test_words_of_a_device_are_seen_after_a_wait_for_another(monkeypatch: pytest.MonkeyPatch, carrier: str) -> None:
    """The other device is of the same appliance, or of another, whose streams the process of the program makes wait."""
    monkeypatch.setenv("REMOTEGPU_CARRIER", carrier)
    with appliance("--gpus", "2") as one, appliance() as other:
        for appliances in ((one,), (one, other)):
            run = subprocess.run(
                command("waits_elsewhere.py device", *appliances), capture_output=True, text=True, timeout=120
            )
            assert (run.returncode, run.stdout) == (0, "seen\n"), (len(appliances), run.stderr)


@pytest.mark.parametrize("what", ["worker", "appliance"])
def test_a_lost_appliance_takes_only_its_device_with_it(what: str) -> None:
    with appliance("--grace", "0s") as one, appliance(profile="hostile") as other:
        program = subprocess.Popen(
            command("lose_one_device.py", one, other), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            assert line(program) == "ready"
            if what == "worker":
                (victim,) = one.workers()
                os.kill(victim, signal.SIGKILL)
            else:
                one.process.kill()
            assert line(program) == "second 911 0"
            assert line(program) == "first 911 911 911 911"
            assert (line(program), program.wait(30)) == ("ok", 0)
        finally:
            program.kill()
            program.communicate()
        until(lambda: not other.workers(), 10, "the other appliance's session is gone")
