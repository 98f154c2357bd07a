"""A slow or broken network between client and appliance changes times and codes, never results."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from support.faultproxy import FaultProxy, Line
from support.system import PROGRAMS, REMOTEGPU, Appliance, Watch, appliance, line
from support.tcp_timers import until_asked_for

STICKY = 911  # CUDA_ERROR_EXTERNAL_DEVICE
# For how long bytes may stay unacknowledged: SILENCE_MS of remoting/carrier/src/socket.rs.
SILENCE_SECONDS = 8
# The proxies' address: the ports are the appliance's own.
BEHIND_PROXIES = "127.0.0.2"


@contextlib.contextmanager
def proxies(remote: Appliance) -> Iterator[tuple[FaultProxy, FaultProxy]]:
    """Before the control port and the data port."""
    host, _, port = remote.endpoint.rpartition(":")
    control, data = [
        FaultProxy(host, number, listen_host=BEHIND_PROXIES, listen_port=number)
        for number in (int(port), int(port) + 1)
    ]
    with control, data:
        yield control, data


def command(remote: Appliance, *program: str) -> list[str]:
    endpoint = f"{BEHIND_PROXIES}:{remote.endpoint.rpartition(':')[2]}"
    return [REMOTEGPU, "run", "--appliance", endpoint, "-p", "0.25", "--", *program]


def endless_calls(remote: Appliance) -> list[str]:
    return command(remote, sys.executable, str(PROGRAMS / "endless_calls.py"))


def environment(carrier: str) -> dict[str, str]:
    return {**os.environ, "REMOTEGPU_CARRIER": carrier}


LINES = {
    "1_ms": Line(delay_ms=1),
    "10_ms": Line(delay_ms=10),
    "50_ms": Line(delay_ms=50),
    "jitter": Line(delay_ms=5, jitter_ms=20),
    "loss_1_percent": Line(delay_ms=1, lost_permille=10),
    "loss_5_percent": Line(delay_ms=1, lost_permille=50),
    "pieces": Line(piece_bytes=1000, jitter_ms=1),
    "100_megabits": Line(delay_ms=1, megabits=100),
}


@pytest.mark.parametrize("carrier", ["direct", "grpc"])
@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize("remote", ["normal"], indirect=True)
def test_a_slow_network_changes_no_result(remote: Appliance, name: str, carrier: str) -> None:
    """Sums, what a kernel sees of page-locked memory, host functions between launches, and 2 MB there and back: each
    program compares all bits that it gets."""
    mirrors = "mirrored_words.py 20 1024 8 7 each"
    programs = ("vector_add.py", "relay_through_pinned.py", "callbacks.py", "echo_tensor.py 7 2000000", mirrors)
    script = " && ".join(f"{sys.executable} {PROGRAMS}/{program}" for program in programs)
    begun = time.monotonic()
    with proxies(remote) as both:
        for proxy in both:
            proxy.behave(LINES[name])
        done = subprocess.run(
            command(remote, "sh", "-c", script), capture_output=True, text=True, timeout=400, env=environment(carrier)
        )
    assert (done.returncode, done.stdout) == (0, "ok\n" * len(programs)), done.stderr
    print(f"{name} {carrier}: {time.monotonic() - begun:.1f} s")


@pytest.mark.parametrize("carrier", ["direct", "grpc"])
def test_without_a_grace_a_cut_connection_is_a_sticky_error(carrier: str) -> None:
    with appliance("--grace", "0s") as remote, proxies(remote) as (_, data):
        program = subprocess.Popen(endless_calls(remote), stdout=subprocess.PIPE, text=True, env=environment(carrier))
        with program:
            assert line(program) == "ready"
            data.cut()
            cut = Watch()
            assert line(program) == f"error {STICKY} {STICKY} {STICKY}"
            assert cut.within(2)


@pytest.mark.parametrize("carrier", ["direct", "grpc"])
def test_a_client_that_is_stopped_within_a_copy_goes_on(own_remote: Appliance, carrier: str) -> None:
    """Longer than a peer may be silent; the bytes that it does not take wait for it."""
    program = subprocess.Popen(
        own_remote.command("copies_back.py"),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(carrier),
    )  # fmt: skip
    with program:
        pid = int(line(program))
        os.kill(pid, signal.SIGSTOP)
        until_asked_for(int(own_remote.endpoint.split(":")[1]) + 1, SILENCE_SECONDS, 60)
        # As a shell's job: the command line stopped with its program, and continues with it.
        program.send_signal(signal.SIGCONT)
        assert program.stdin is not None
        program.stdin.close()
        assert line(program) == "right"
    assert program.returncode == 0
