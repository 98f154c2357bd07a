"""A thousand strangers at each port beside fifty tenants, and connections that prove nothing (shard security)."""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import resource
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography import x509
from support.certificates import certificate
from support.stand_in import Session, StandIn
from support.strangers import HALF_HANDSHAKE, HTTP2_PREFACE, Strangers

from remotegpu.api.quantities import Ask
from remotegpu.rpc.client import Access, parse_endpoint

MIB = 1 << 20
TENANTS, CALLS, STRANGERS = 50, 40, 1000
# Behind strangers a call may take so many times as long as without, and on a busy machine so many seconds.
MOST_TIMES, MOST_SECONDS = 20, 0.5


@pytest.fixture
def descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def p99(sessions: list[Session]) -> float:
    """Seconds, of all calls of tenants that call at the same time."""

    def calls(session: Session) -> list[float]:
        times = []
        for number in range(CALLS):
            started = time.monotonic()
            session.ask(f"stats {number}")
            times.append(time.monotonic() - started)
        return times

    with ThreadPoolExecutor(len(sessions)) as pool:
        times = sorted(itertools.chain.from_iterable(pool.map(calls, sessions)))
    return times[len(times) * 99 // 100]


@pytest.mark.usefixtures("descriptors")
def test_a_thousand_strangers_at_each_port_beside_fifty_tenants(dist: Path, tmp_path: Path) -> None:
    certificate(tmp_path, "here", x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    (tmp_path / "tokens").write_text("alice:one\n")
    options = ("--cert", str(tmp_path / "here.pem"), "--key", str(tmp_path / "here.key"))
    access = Access("one", tmp_path / "here.pem")
    with StandIn(dist, *options, "--tokens", str(tmp_path / "tokens"), access=access) as appliance:
        tenants = [appliance.lease(Ask(memory_bytes=8 * MIB)).session() for _ in range(TENANTS)]
        without = p99(tenants)
        ports = [parse_endpoint(appliance.endpoint).port, appliance.client.hello().data_port]
        with Strangers(ports, addresses=200) as strangers:
            strangers.come(STRANGERS // 2, b"")
            strangers.come(STRANGERS // 2, HALF_HANDSHAKE)
            beside = p99(tenants)
            newcomer = appliance.lease(Ask(memory_bytes=8 * MIB))
            assert newcomer.session().grant(2 * MIB) == 2 * MIB
        print(f"p99 of {TENANTS} tenants: {without * 1e3:.2f} ms without, {beside * 1e3:.2f} ms beside strangers")
        assert beside < max(MOST_TIMES * without, MOST_SECONDS)


def test_who_never_proves_anything_has_to_leave(appliance: StandIn) -> None:
    """Both ports, in the middle of TLS or of HTTP/2: the control port waits 15 s, the data port 5 s."""
    assert not appliance.client.inventory().leases, "a call that is permitted: the tests' own connection may stay"
    ports = [parse_endpoint(appliance.endpoint).port, appliance.client.hello().data_port]
    with Strangers(ports) as strangers:
        for words in (b"", b"PRI", HTTP2_PREFACE):
            strangers.come(1, words)
        for connection in itertools.chain.from_iterable(strangers.connections.values()):
            wait_for_end(connection)


def wait_for_end(connection: socket.socket) -> None:
    with contextlib.suppress(ConnectionError):
        while connection.recv(4096):
            pass


def test_who_waits_for_a_share_may_stay(appliance: StandIn) -> None:
    """Its call was permitted when it came, and says nothing for longer than a stranger has."""
    holder = appliance.lease(Ask(count=2, milli_per_gpu=1000))
    with appliance.client.open_lease(Ask(milli_per_gpu=500), "waits", wait=True) as events:
        assert next(events).HasField("waiting")
        with Strangers([parse_endpoint(appliance.endpoint).port]) as strangers:
            strangers.come(1, HTTP2_PREFACE)
            wait_for_end(strangers.first_of_each_port()[0])
        holder.close()
        granted = next(event.granted for event in events if event.HasField("granted"))
    appliance.client.close_lease(granted.lease_id, granted.lease_secret)
