"""A slow or broken network between client and appliance changes times and codes, never results."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from support.faultproxy import FaultProxy
from support.system import PROGRAMS, REMOTEGPU, Appliance, Watch, line
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


def command(remote: Appliance, program: str) -> list[str]:
    endpoint = f"{BEHIND_PROXIES}:{remote.endpoint.rpartition(':')[2]}"
    return [REMOTEGPU, "run", "--appliance", endpoint, "-p", "0.25", "--", sys.executable, str(PROGRAMS / program)]


def environment(carrier: str) -> dict[str, str]:
    return {**os.environ, "REMOTEGPU_CARRIER": carrier}


@pytest.mark.parametrize("carrier", ["direct", "grpc"])
def test_ten_milliseconds_change_no_result(remote: Appliance, carrier: str) -> None:
    with proxies(remote) as both:
        for proxy in both:
            proxy.delay(10)
        done = subprocess.run(
            command(remote, "vector_add.py"), capture_output=True, text=True, timeout=100, env=environment(carrier)
        )
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


@pytest.mark.parametrize("carrier", ["direct", "grpc"])
def test_a_cut_connection_is_a_sticky_error(remote: Appliance, carrier: str) -> None:
    with proxies(remote) as (_, data):
        program = subprocess.Popen(
            command(remote, "endless_calls.py"), stdout=subprocess.PIPE, text=True, env=environment(carrier)
        )
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
