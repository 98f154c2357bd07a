"""A fault affects only its victim, is reported, and frees the victim's resources."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.system import PROGRAMS, Appliance, Watch, appliance, line, started_by, until
from support.tcp_timers import until_asked_for

from remotegpu.appliance.leases.leases import HOLD_SECONDS

STICKY = 911  # CUDA_ERROR_EXTERNAL_DEVICE
ENDED = 46  # CUDA_ERROR_DEVICE_UNAVAILABLE
STOPPED = 60
# Longer than a peer may be silent (SILENCE_MS of remoting/carrier/src/socket.rs), and than a lease lives unheld.
QUIET = 15


def test_a_killed_worker_is_a_sticky_error_for_its_client_alone(remote: Appliance) -> None:
    with remote.start("endless_calls.py") as victim:
        assert line(victim) == "ready"
        (worker,) = remote.workers()
        with remote.start("endless_calls.py", "4") as bystander:
            assert line(bystander) == "ready"
            os.kill(worker, signal.SIGKILL)
            killed = Watch()
            assert line(victim) == f"error {STICKY} {STICKY} {STICKY}"
            assert killed.within(2)
            assert line(bystander) == "finished"
        assert victim.stderr is not None
        assert "appliance" in victim.stderr.readline()


@pytest.mark.timeout(600)
def test_twenty_workers_killed_in_mid_kernel(own_remote: Appliance) -> None:
    """One after the other; meanwhile a bystander counts launches and compares bytes."""
    with own_remote.start("count_rounds.py", "1", stdin=subprocess.PIPE) as bystander:
        assert line(bystander) == "round 1"
        (other,) = own_remote.workers()
        for _ in range(20):
            with own_remote.start("wait_for_ever.py") as victim:
                assert line(victim) == "ready"
                (worker,) = set(own_remote.workers()) - {other}
                spun = cpu_seconds(worker)
                until(lambda worker=worker, spun=spun: cpu_seconds(worker) > spun + 0.05, 30, "its kernel spins")  # type: ignore[misc]
                os.kill(worker, signal.SIGKILL)
                killed = Watch()
                assert line(victim) == f"error {STICKY}"
                assert killed.within(2)
            until(lambda: own_remote.workers() == [other], 5, "its worker is gone")
        assert bystander.stdin is not None
        bystander.stdin.close()
        bystander.stdin = None
        while (said := line(bystander)).startswith("round"):
            pass
        word, rounds, counted = said.split()
        assert (word, int(counted)) == ("ok", 20 * int(rounds))


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("how", ["exit", "crash", "kill"])
def test_the_share_comes_back_when_a_client_ends(remote: Appliance, how: str) -> None:
    action = {
        "exit": "sys.exit(0)",
        "crash": "ctypes.string_at(0)",
        "kill": "os.kill(os.getpid(), 9)",
    }[how]
    attach = "from cu import *; start(); ok(cu.cuMemAlloc(64 << 20))"
    script = f"import ctypes, os, sys; sys.path.insert(0, {str(PROGRAMS)!r})\n{attach}\n{action}"
    remote.run(sys.executable, "-c", script)
    until(lambda: remote.leased_bytes() == 0 and not remote.workers(), 5, "share and worker are gone")


def test_a_forked_child_of_a_killed_client_holds_nothing(remote: Appliance) -> None:
    with remote.start("forked_child.py") as parent:
        lines = sorted([line(parent), line(parent)])
        assert lines[0] == "child 3", "a forked child must see NOT_INITIALIZED"
        child, client = int(lines[1].split()[1]), None
        for pid in Path("/proc").glob("[0-9]*"):
            status = pid / "status"
            if int(pid.name) == child:
                client = int(next(x for x in status.read_text().splitlines() if x.startswith("PPid")).split()[1])
        assert client is not None
        os.kill(client, signal.SIGKILL)
        until(lambda: not remote.workers(), 5, "the session of the killed client is gone")
        assert Path(f"/proc/{child}").exists()
        until(lambda: remote.used_bytes() == 0, 5, "its memory is back")


@pytest.fixture(scope="module")
def sigpipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("sigpipe") / "sigpipe"
    subprocess.run(["cc", "-O1", "-o", program, PROGRAMS / "sigpipe.c", "-ldl"], check=True)
    return program


def test_a_lost_appliance_is_an_error_not_a_signal(remote: Appliance, sigpipe: Path) -> None:
    with remote.start(str(sigpipe)) as program:
        assert line(program) == "ready"
        (worker,) = remote.workers()
        os.kill(worker, signal.SIGKILL)
        assert line(program) == f"error {STICKY}"
        assert program.wait(10) == 0


@pytest.mark.parametrize(
    "seconds", [HOLD_SECONDS, pytest.param(60, marks=[pytest.mark.thorough, pytest.mark.timeout(400)])]
)
def test_a_stopped_client_keeps_its_session(own_remote: Appliance, seconds: int) -> None:
    """Stopped for longer than a peer may be silent, and than a lease may live unheld: its kernel still answers."""
    with own_remote.start("endless_calls.py", str(2 * seconds)) as client:
        assert line(client) == "ready"
        os.killpg(client.pid, signal.SIGSTOP)
        until_asked_for(int(own_remote.endpoint.split(":")[1]) + 1, seconds, 4 * seconds + 20)
        os.killpg(client.pid, signal.SIGCONT)
        assert line(client) == "finished"


def test_an_appliance_that_is_stopped_for_a_minute_keeps_its_sessions(own_remote: Appliance) -> None:
    """All of its processes are stopped. A newcomer gets an error in seconds, a waiting program its answer later."""
    with own_remote.start("endless_calls.py", str(STOPPED + 5)) as client:
        assert line(client) == "ready"
        stopped = [own_remote.process.pid, *children(own_remote.process.pid)]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            begun = time.monotonic()
            late = own_remote.run("vector_add.py", timeout=40)
            assert late.returncode != 0
            assert own_remote.endpoint in late.stderr
            until(lambda: time.monotonic() - begun > STOPPED, STOPPED + 5, "so long")
            assert client.poll() is None
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
        assert line(client) == "finished"
    assert own_remote.run("vector_add.py").stdout == "ok\n"


def children(pid: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout.split()
    return [int(each) for each in found]


@pytest.mark.parametrize("carrier", ["direct", "grpc"])
@pytest.mark.parametrize("seconds", [QUIET, pytest.param(600, marks=[pytest.mark.thorough, pytest.mark.timeout(700)])])
def test_a_long_kernel_is_not_taken_for_a_lost_one(own_remote: Appliance, seconds: int, carrier: str) -> None:
    """The connection is silent for longer than a peer may be."""
    done = own_remote.run("long_kernel.py", str(seconds), env={"REMOTEGPU_CARRIER": carrier}, timeout=seconds + 60)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


@pytest.fixture
def namespace() -> Iterator[str]:
    """A network namespace of the test's own, so that dropped packets affect nothing else."""
    if os.geteuid() != 0 or not shutil.which("nft") or not shutil.which("ip"):
        pytest.skip("needs root, ip and nft to drop packets in a network namespace")
    name = f"rgpu{os.getpid()}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        yield name
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True)


@pytest.mark.parametrize(
    ("program", "carrier", "dropped"),
    [
        ("wait_for_ever.py", "direct", "both"),
        ("endless_calls.py", "grpc", "both"),
        ("wait_for_ever.py", "direct", "to it"),
        ("wait_for_ever.py", "grpc", "from it"),
        ("endless_calls.py", "direct", "from it"),
    ],
)
def test_a_peer_that_vanishes_is_lost_within_10_seconds(
    namespace: str, tmp_path: Path, program: str, carrier: str, dropped: str
) -> None:
    """A deleted pod's address does not answer any more, or one direction of the network is gone. Both ends notice, even
    if nothing is in flight.
    """
    inside = ["ip", "netns", "exec", namespace]
    with (
        started_by(" ".join(inside), tmp_path),
        appliance("--grace", "0s") as remote,
        remote.start(program, env={"REMOTEGPU_CARRIER": carrier}) as client,
    ):
        assert line(client) == "ready"
        data = int(remote.endpoint.split(":")[1]) + 1
        rule = {"to it": f"tcp dport {data} drop;", "from it": f"tcp sport {data} drop;"}
        drop = rule.get(dropped) or "".join(rule.values())
        rules = f"table inet t {{ chain c {{ type filter hook input priority 0; {drop} }}; }}\n"
        subprocess.run([*inside, "nft", "-f", "-"], input=rules, text=True, check=True)
        gone = Watch()
        # An appliance that receives nothing, but is heard, may be the first to end the session: with its own code.
        codes = {STICKY, ENDED} if dropped == "to it" else {STICKY}
        assert int(line(client).split()[1]) in codes
        assert gone.within(10)
        until(lambda: remote.leased_bytes() == 0, 10, "the silent client's share is back")


@pytest.mark.parametrize("seconds", [QUIET, pytest.param(60, marks=pytest.mark.thorough)])
def test_silence_is_survived(namespace: str, tmp_path: Path, seconds: int) -> None:
    """Both ends notice that the other one is silent, and go on when it is not."""
    inside = ["ip", "netns", "exec", namespace]
    with (
        started_by(" ".join(inside), tmp_path),
        appliance() as remote,
        remote.start("endless_calls.py", str(seconds + 20)) as client,
    ):
        assert line(client) == "ready"
        rules = "table inet t { chain c { type filter hook input priority 0; tcp dport != 0 drop; }; }\n"
        subprocess.run([*inside, "nft", "-f", "-"], input=rules, text=True, check=True)
        begun = time.monotonic()
        until(lambda: time.monotonic() - begun > seconds, seconds + 5, "so long")
        subprocess.run([*inside, "nft", "flush", "ruleset"], check=True)
        assert line(client) == "finished"


def test_drain_on_sigterm_refuses_new_leases_and_lets_sessions_end(own_remote: Appliance) -> None:
    with own_remote.start("endless_calls.py", "3") as client:
        assert line(client) == "ready"
        own_remote.process.terminate()

        def refused() -> bool:
            late = own_remote.run("true", options=("--no-wait",), timeout=10)
            return late.returncode != 0 and "draining" in late.stderr

        until(refused, 3, "no new lease, and a reason")
        assert line(client) == "finished"
        assert own_remote.process.wait(20) == 0
