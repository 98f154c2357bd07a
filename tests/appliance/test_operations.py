"""Running an appliance: metrics, tokens, TLS, the gateway's death, draining, and mistakes at the start."""

from __future__ import annotations

import asyncio
import ipaddress
import resource
import signal
import subprocess
import urllib.request
from pathlib import Path

import pytest
from cryptography import x509
from support.certificates import certificate
from support.stand_in import StandIn
from support.system import free_port, until

from remotegpu.api.failures import ApplianceError, Failure
from remotegpu.api.quantities import Ask
from remotegpu.appliance.gpus.hardware import SelfTest
from remotegpu.appliance.gpus.health import GpuHealth
from remotegpu.appliance.shares.allocation import Capacity
from remotegpu.rpc.client import Access

MIB = 1 << 20


def metrics(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def test_metrics(dist: Path) -> None:
    port = free_port()
    with StandIn(dist, "--metrics-port", str(port)) as appliance:
        lease = appliance.lease(Ask(milli_per_gpu=250))
        session, victim = lease.session(1), lease.session(2)
        session.grant(8 * MIB)
        session.grant(1000 * MIB)
        session.ask("stats 5")
        session.ask("stats 12")
        victim.tell(f"die {int(signal.SIGKILL)}")
        now = until(
            lambda: (m := metrics(port))["remotegpu_sessions"] == 1 and m["remotegpu_commands_total"] and m,
            5,
            "both are counted",
        )
        expected = {
            'remotegpu_gpu_total_bytes{gpu="0"}': 1024 * MIB,
            'remotegpu_gpu_shareable_bytes{gpu="0"}': 1024 * MIB,
            'remotegpu_gpu_leased_bytes{gpu="0"}': 256 * MIB,
            'remotegpu_gpu_used_bytes{gpu="0"}': 8 * MIB,
            'remotegpu_gpu_healthy{gpu="0"}': 1,
            "remotegpu_leases": 1,
            "remotegpu_leases_opened_total": 1,
            "remotegpu_sessions_opened_total": 2,
            "remotegpu_lease_wait_seconds_count": 1,
            'remotegpu_grants_total{gpu="0"}': 1,
            'remotegpu_grants_refused_total{gpu="0"}': 1,
            "remotegpu_commands_total": 12,
            'remotegpu_worker_exits_total{result="signal"}': 1,
            "remotegpu_draining": 0,
        }
        assert {name: now.get(name) for name in expected} == expected
        base_units = (
            "_bytes",
            "_ratio",
            "_celsius",
            "_watts",
            "_seconds",
            "_total",
            "_count",
            "_sum",
            "_bucket",
            "_created",
        )
        plain = {"remotegpu_gpu_healthy", "remotegpu_leases", "remotegpu_sessions", "remotegpu_draining"}
        assert all(n.startswith("remotegpu_") and (n.endswith(base_units) or n in plain) for n in names(now))


def names(values: dict[str, float]) -> set[str]:
    return {name.partition("{")[0] for name in values}


def test_tokens(dist: Path, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("alice:one\n")
    with StandIn(dist, "--tokens", str(tokens), access=Access(token="one")) as appliance:
        lease = appliance.lease(Ask(milli_per_gpu=100))
        assert not lease.open_session().refusal, "a session needs the lease's secret, no token"
        token_file = tmp_path / "mine"
        token_file.write_text("two\n")
        for arguments in ([], ["--token-file", str(token_file)]):
            done = appliance.cli("ls", *arguments)
            assert done.returncode == 77
            assert "token" in done.stderr
            assert done.stderr.count("\n") == 1
        tokens.write_text("alice:two\n")
        assert appliance.cli("ls", "--token-file", str(token_file)).returncode == 0
        with pytest.raises(ApplianceError) as caught:
            appliance.client.inventory()
        assert caught.value.failure is Failure.DENIED


def test_tls(dist: Path, tmp_path: Path) -> None:
    certificate(tmp_path, "here", x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    certificate(tmp_path, "named", x509.DNSName("appliance.example"))
    certificate(tmp_path, "other", x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    cert, other = tmp_path / "here.pem", tmp_path / "other.pem"
    with StandIn(dist, "--cert", str(cert), "--key", str(tmp_path / "here.key"), access=Access(ca=cert)) as appliance:
        lease = appliance.lease(Ask(milli_per_gpu=250))
        assert lease.session().grant(2 * MIB) == 2 * MIB
        assert appliance.cli("ls", "--ca", str(cert)).returncode == 0
        for arguments, code, names in (
            ([], 69, (appliance.endpoint, "--ca")),
            (["--ca", str(other)], 69, (appliance.endpoint, "--ca")),
            (["--ca", str(cert), "--server-name", "elsewhere"], 69, (appliance.endpoint, "elsewhere")),
            (["--ca", str(tmp_path / "none.pem")], 2, (str(tmp_path / "none.pem"), "--ca")),
        ):
            done = appliance.cli("ls", *arguments)
            assert done.returncode == code, done.stderr
            assert all(name in done.stderr for name in names), done.stderr
            assert done.stderr.count("\n") == 1
    named = Access(ca=tmp_path / "named.pem", server_name="appliance.example")
    options = ("--cert", str(named.ca), "--key", str(tmp_path / "named.key"))
    with StandIn(dist, *options, access=named) as appliance:
        assert appliance.lease(Ask(milli_per_gpu=250)).session().grant(2 * MIB) == 2 * MIB


def children(appliance: StandIn, pattern: str = "") -> list[int]:
    command = ["pgrep", "-P", str(appliance.process.pid), "-f", pattern]
    return [int(pid) for pid in subprocess.run(command, capture_output=True, text=True).stdout.split()]


def gateway_of(appliance: StandIn) -> int:
    return next(iter(children(appliance, "remotegpu-gateway")), 0)


def test_a_killed_gateway_is_replaced_and_leases_go_on(dist: Path) -> None:
    with StandIn(dist) as appliance:
        lease = appliance.lease(Ask(milli_per_gpu=250))
        session = lease.session(1)
        session.grant(8 * MIB)
        old = gateway_of(appliance)
        subprocess.run(["kill", "-KILL", str(old)], check=True)
        until(lambda: gateway_of(appliance) not in (0, old), 5, "there is a new gateway")
        assert session.grant(8 * MIB) == 8 * MIB, "a session's connection is the worker's, not the gateway's"
        granted = lease.granted
        lease.holding = until(
            lambda: try_hold(lease.connect, granted.lease_id, granted.lease_secret), 5, "held by the new gateway"
        )
        assert lease.session(2).grant(8 * MIB) == 8 * MIB


def try_hold(connect: object, lease_id: str, secret: str) -> object:
    try:
        return connect(b"RGL1", lease_id, secret)  # type: ignore[operator]
    except (ApplianceError, OSError):
        return None


def test_a_gateway_that_does_not_stay_ends_the_appliance_with_a_message(dist: Path) -> None:
    with StandIn(dist) as appliance:
        killed: set[int] = {0}
        while appliance.process.poll() is None:
            gateway = gateway_of(appliance)
            if gateway not in killed:
                killed.add(gateway)
                subprocess.run(["kill", "-KILL", str(gateway)], check=False)
        assert appliance.process.returncode == 69
        assert "the gateway ended 6 times within a minute" in appliance.log


def test_draining_lets_leases_end_and_opens_none(dist: Path) -> None:
    with StandIn(dist, "--drain-seconds", "60") as appliance:
        lease = appliance.lease(Ask(milli_per_gpu=250))
        session = lease.session(1)
        appliance.process.terminate()
        until(lambda: appliance.client.inventory().draining, 5, "it drains")
        with pytest.raises(ApplianceError) as refused:
            appliance.lease(Ask(milli_per_gpu=250))
        assert refused.value.failure is Failure.BUSY
        assert session.grant(8 * MIB) == 8 * MIB
        assert lease.session(2).grant(8 * MIB) == 8 * MIB, "a lease may still open sessions"
        assert appliance.cli("doctor").returncode == 69
        lease.let_go()
        assert appliance.process.wait(10) == 0


@pytest.mark.parametrize("how", ["deadline", "second signal"])
def test_draining_ends_and_says_so_to_clients(dist: Path, how: str) -> None:
    with StandIn(dist, "--drain-seconds", "1" if how == "deadline" else "600") as appliance:
        session = appliance.lease(Ask(milli_per_gpu=250)).session()
        session.grant(8 * MIB)
        appliance.process.terminate()
        if how == "second signal":
            until(lambda: appliance.client.inventory().draining, 5, "it drains")
            appliance.process.terminate()
        assert "the appliance shuts down" in session.rest()
        assert appliance.process.wait(10) == 0


def test_nothing_of_a_killed_appliance_stays(dist: Path) -> None:
    with StandIn(dist) as appliance:
        appliance.lease(Ask(milli_per_gpu=250)).session().grant(8 * MIB)
        pids = children(appliance)
        assert len(pids) == 2
        appliance.process.kill()
        appliance.process.wait()
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 5, "gateway and worker are gone")


def test_it_may_open_as_many_files_as_the_system_lets_it(dist: Path) -> None:
    """Systems start services with 1,024; each session and each export of each lease keeps some open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    try:
        with StandIn(dist) as appliance:
            assert resource.prlimit(appliance.process.pid, resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("options", "code", "names"),
    [
        (["--listen", "nonsense"], 2, ["--listen", "'nonsense'", "HOST:PORT"]),
        (["--listen", "192.0.2.1:7070", "--insecure"], 69, ["--listen", "192.0.2.1:7070"]),
        (["--listen", "TAKEN"], 69, ["--listen", "TAKEN"]),
        (["--metrics-port", "TAKEN PORT"], 69, ["--metrics-port", "TAKEN PORT"]),
        (["--http", "TAKEN"], 69, ["--http", "TAKEN"]),
        (["--http", "nonsense"], 2, ["--http", "'nonsense'", "HOST:PORT"]),
        (["--kubernetes"], 2, ["--kubernetes", "--name"]),
        (["--cert", "/dev/null"], 69, ["--cert", "--key"]),
        (["--cert", "/none", "--key", "/none"], 69, ["/none"]),
        (["--tokens", "/none"], 69, ["token", "/none"]),
        (["--memory", "lots"], 2, ["--memory", "'lots'", "GiB"]),
        (["--backend", "quantum"], 2, ["--backend", "'quantum'", "'cuda'", "'software'"]),
        (["--backend", "cuda", "--driver", "/etc/hostname"], 69, ["NVML"]),
    ],
)
def test_mistakes_at_the_start(appliance: StandIn, options: list[str], code: int, names: list[str]) -> None:
    taken = {"TAKEN": appliance.endpoint, "TAKEN PORT": appliance.endpoint.rpartition(":")[2]}
    actual = [taken.get(option, option) for option in options]
    listen = [] if "--listen" in options else ["--listen", f"127.0.0.1:{free_port()}"]
    done = appliance.cli("appliance", "--no-self-test", "--quiet", *listen, *actual)
    assert done.returncode == code, done.stderr
    assert all(taken.get(name, name) in done.stderr for name in names), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


def test_gpu_health_believes_the_driver_and_its_own_test_only() -> None:
    """A GPU is taken out by the driver's word or a failed test, and comes back by a passed one."""
    gpus = [Capacity(5), Capacity(5)]
    problems = {0: "", 1: ""}
    results = [SelfTest(), SelfTest(problem="self-test: wrong values"), SelfTest()]

    async def test(_gpu: int) -> SelfTest:
        return results.pop(0)

    async def story() -> None:
        health = GpuHealth(
            gpus, problem=problems.__getitem__, test=test, tells_recovery=lambda _gpu: True, retest_seconds=0
        )
        assert not await health.look_at(0)
        assert len(results) == 3, "without a reason nothing is tested"
        health.suspect(0, "a session said so")
        await health.look_at(0)
        assert gpus[0].unhealthy == "", "it passed the test"
        health.suspect(0, "again")
        await health.look_at(0)
        assert gpus[0].unhealthy == "self-test: wrong values"
        assert await health.look_at(0), "it recovered"
        assert gpus[0].unhealthy == ""
        problems[1] = "fell off the bus"
        await health.look_at(1)
        assert gpus[1].unhealthy == "fell off the bus"

    asyncio.run(story())
