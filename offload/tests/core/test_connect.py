"""Sessions over the real way: an appliance with environments, `remotegpu-connect`, both carriers, TLS."""

from __future__ import annotations

import ipaddress
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from offload_appliance import PATIENCE, lease, offload_appliance
from support.certificates import certificate
from support.stand_in import StandIn, Tenant
from support.system import DIST, REMOTEGPU, until

from remotegpu.api.objects import Share, shares_to_env
from remotegpu.rpc.client import Access
from remotegpu_offload.client import control
from remotegpu_offload.client.connect import ConnectError
from remotegpu_offload.client.session import Session
from remotegpu_offload.config.model import Config, SessionRules
from remotegpu_offload.wire import LostError, OffloadError

ENVIRONMENTS = (f"first={sys.executable}:cpu", f"second={sys.executable}:cpu")


@pytest.fixture(scope="module")
def appliance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    with offload_appliance(tmp_path_factory.mktemp("plain"), environments=ENVIRONMENTS) as it:
        yield it


@pytest.fixture(autouse=True)
def _environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runtime").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("REMOTEGPU_CONNECT", str(DIST / "bin" / "remotegpu-connect"))
    monkeypatch.setenv("REMOTEGPU_POD_DIRECTORY", str(tmp_path / "no pod"))
    monkeypatch.delenv("REMOTEGPU_SHARES", raising=False)


def share(tenant: Tenant, ca: Path | None = None) -> Share:
    granted = tenant.granted
    return Share(tenant.appliance.endpoint, granted.lease_id, granted.lease_secret, None if ca is None else str(ca))


def opened(**rules: object) -> Session:
    return Session.open(Config(session=SessionRules(**rules)), offered={})  # type: ignore[arg-type]


def sessions(appliance: StandIn) -> int:
    return sum(lease.sessions for lease in appliance.client.inventory().leases)


@pytest.mark.parametrize("carrier", ["direct", "grpc", "auto"])
@pytest.mark.parametrize("tls", [False, True])
def test_a_session_opens_moves_and_ends_over_every_carrier(
    carrier: str, tls: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate(tmp_path, "here", x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    ca = tmp_path / "here.pem" if tls else None
    options = ("--cert", str(ca), "--key", str(tmp_path / "here.key")) if ca is not None else ()
    (tmp_path / "appliance").mkdir()
    with (
        offload_appliance(
            tmp_path / "appliance", *options, environments=ENVIRONMENTS, access=Access(ca=ca)
        ) as appliance,
        lease(appliance) as tenant,
    ):
        monkeypatch.setenv("REMOTEGPU_SHARES", shares_to_env([share(tenant, ca)]))
        monkeypatch.setenv("REMOTEGPU_CARRIER", carrier)
        session = opened(backends=("rocm", "cpu"))
        try:
            assert (session.environment.name, session.environment.backend) == ("first", "cpu")
            assert session.place == f"acceptor first (cpu) at {appliance.endpoint}"
            assert session.stats()["acceptor"]["environment"]["name"] == "first"
            session.switch(environment="second")
            assert session.stats()["acceptor"]["environment"]["name"] == "second"
            until(lambda: sessions(appliance) == 1, PATIENCE, "the first session has ended")
        finally:
            session.close()
        until(lambda: sessions(appliance) == 0, PATIENCE, "the session has ended")


def test_what_is_missing_is_named(appliance: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConnectError, match="REMOTEGPU_SHARES") as caught:
        opened()
    assert caught.value.kind == "settings"
    with lease(appliance) as tenant:
        monkeypatch.setenv("REMOTEGPU_SHARES", shares_to_env([share(tenant)]))
        with pytest.raises(ConnectError, match=r"\bthird\b.*\bfirst \(cpu\), second \(cpu\)") as caught:
            opened(environment="third")
        assert caught.value.kind == "settings"
        with pytest.raises(ConnectError, match=r"\brocm\b.*\bxpu\b") as caught:
            opened(backends=("rocm", "xpu"))
        assert caught.value.kind == "settings"
        monkeypatch.setenv("REMOTEGPU_CARRIER", "pigeon")
        with pytest.raises(ConnectError, match="REMOTEGPU_CARRIER=pigeon") as caught:
            opened()
        assert caught.value.kind == "settings"
    monkeypatch.setenv("REMOTEGPU_SHARES", shares_to_env([Share("127.0.0.1:1", "ab" * 16, "cd" * 32)]))
    with pytest.raises(ConnectError, match=r"127\.0\.0\.1:1\b") as caught:
        opened()
    assert caught.value.kind == "unreachable"
    monkeypatch.setenv("REMOTEGPU_CONNECT", "/nowhere/remotegpu-connect")
    with pytest.raises(OffloadError, match="/nowhere/remotegpu-connect"):
        opened()
    monkeypatch.setenv("REMOTEGPU_CONNECT", "/bin/true")
    with pytest.raises(ConnectError) as caught:
        opened()
    assert caught.value.kind == "internal"


def test_a_lost_share_is_skipped(appliance: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    with lease(appliance) as tenant:
        gone = Share("127.0.0.1:1", "ab" * 16, "cd" * 32)
        monkeypatch.setenv("REMOTEGPU_SHARES", shares_to_env([gone, share(tenant)]))
        session = opened()
        assert session.environment.name == "first"
        session.close()


def test_a_session_is_resumed_when_its_acceptor_is_killed(appliance: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    with lease(appliance) as tenant:
        monkeypatch.setenv("REMOTEGPU_SHARES", shares_to_env([share(tenant)]))
        session = opened(resume_seconds=60)
        try:
            # The far end goes away under it.
            session._peer._sock.shutdown(2)
            assert session._peer.closed.wait(60)
            assert session.stats()["lost"]
            assert session.peer.closed.is_set() is False
            assert session.moves == 1
        finally:
            session.close()


def test_the_end_of_the_lease_is_the_end_of_the_session(appliance: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    with lease(appliance) as tenant:
        monkeypatch.setenv("REMOTEGPU_SHARES", shares_to_env([share(tenant)]))
        session = opened()
        try:
            tenant.close()
            assert session._peer.closed.wait(60)
            with pytest.raises(LostError, match=r"\bfirst\b"):
                session.peer.request(1)  # type: ignore[arg-type]
        finally:
            session.close()


def test_the_program_ends_with_its_user(appliance: StandIn) -> None:
    """Killed, so that nothing is closed in an orderly way."""
    code = (
        "import os, signal\n"
        "from remotegpu_offload.client.session import current\n"
        "print(current().environment.name, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    with lease(appliance) as tenant:
        environ = os.environ | {"REMOTEGPU_SHARES": shares_to_env([share(tenant)])}
        done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (-9, "first\n"), done.stderr
        until(lambda: sessions(appliance) == 0, PATIENCE, "the session has ended")


def test_the_command_line_shows_and_moves_a_session(appliance: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    def remotegpu(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([REMOTEGPU, "offload", *arguments], capture_output=True, text=True, check=False)

    assert remotegpu("stats").stdout == "no sessions of this user\n"
    listed = remotegpu("backends", "--appliance", appliance.endpoint)
    assert "first" in listed.stdout and "second" in listed.stdout and "cpu" in listed.stdout, listed.stderr
    with lease(appliance) as tenant:
        monkeypatch.setenv("REMOTEGPU_SHARES", shares_to_env([share(tenant)]))
        session = opened()
        try:
            assert session.id in remotegpu("stats").stdout
            moved = remotegpu("switch", session.id, "--environment", "second")
            assert moved.stdout == f"{session.id} runs at acceptor second (cpu) at {appliance.endpoint}\n", moved.stderr
            one = remotegpu("stats", session.id)
            assert "session" in one.stdout and "memory there" in one.stdout, one.stderr
            failed = remotegpu("switch", session.id, "--backend", "rocm")
            assert failed.returncode == 69 and "rocm" in failed.stderr
            assert session.environment.name == "second" and session.moves == 1
        finally:
            session.close()
    unknown = remotegpu("switch", session.id)
    assert unknown.returncode == 2 and session.id in unknown.stderr
    assert list(control.sessions()) == []
