"""Strangers at both ports: many idle, half-open and wrong connections keep neither tenants nor newcomers out."""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import re
import select
import socket
import ssl
import struct
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from support import http2
from support.certificates import certificate
from support.stand_in import StandIn
from support.strangers import HALF_HANDSHAKE, HTTP2_PREFACE, Strangers
from support.system import free_port, until

from remotegpu.api.quantities import Ask
from remotegpu.rpc import pb
from remotegpu.rpc.client import Access, ApplianceClient, parse_endpoint

MIB = 1 << 20
SHARE = Ask(milli_per_gpu=100)


@pytest.fixture(scope="module")
def metrics_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def guarded(dist: Path, tmp_path_factory: pytest.TempPathFactory, metrics_port: int) -> Iterator[StandIn]:
    """An appliance with TLS and a token."""
    folder = tmp_path_factory.mktemp("guarded")
    certificate(folder, "here", x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    (folder / "tokens").write_text("alice:one\n")
    options = (
        "--cert",
        str(folder / "here.pem"),
        "--key",
        str(folder / "here.key"),
        "--tokens",
        str(folder / "tokens"),
    )
    access = Access("one", folder / "here.pem")
    with StandIn(dist, *options, "--metrics-port", str(metrics_port), access=access) as it:
        yield it


def ports(appliance: StandIn) -> list[int]:
    return [parse_endpoint(appliance.endpoint).port, appliance.client.hello().data_port]


def refusals(metrics_port: int) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=5) as answer:
        found = re.search(r'^remotegpu_refusals_total\{reason="door"\} (\S+)$', answer.read().decode(), re.MULTILINE)
    return float(found[1]) if found else 0


def test_refusals_are_counted_all_and_logged_in_part(guarded: StandIn, metrics_port: int) -> None:
    """The first test: no connection was refused before it."""
    # This test's own connection has proved who it is, or it would be refused too.
    assert guarded.client.inventory().gpus
    with Strangers(ports(guarded)) as strangers:
        strangers.come(100, b"GET / HTTP/1.1\r\n\r\n")
        until(lambda: refusals(metrics_port) == 200, 20, "all are counted")
    assert guarded.log.count("the gateway refused") < 50
    assert re.search(r"the gateway refused \d+ more", guarded.log)


def test_who_only_looks_whether_somebody_listens_is_no_refusal(guarded: StandIn, metrics_port: int) -> None:
    before = refusals(metrics_port)
    assert guarded.access.ca is not None
    for _ in range(3):
        assert guarded.cli("doctor", "--ca", str(guarded.access.ca), "--token-file", "/dev/null").returncode == 69
    for port in ports(guarded):
        socket.create_connection(("127.0.0.1", port), 5).close()
    with Strangers(ports(guarded)) as strangers:
        strangers.come(1, b"GET / HTTP/1.1\r\n\r\n")
        until(lambda: refusals(metrics_port) - before >= 2, 20, "the strangers are counted")
    assert refusals(metrics_port) - before == 2


def test_strangers_keep_nobody_out(guarded: StandIn) -> None:
    tenant = guarded.lease(SHARE)
    session = tenant.session()
    with Strangers(ports(guarded)) as strangers:
        strangers.come(300, b"")
        strangers.come(300, HALF_HANDSHAKE)
        strangers.come(100, b"GET / HTTP/1.1\r\n\r\n")
        assert session.grant(MIB) == MIB
        assert tenant.session(2).grant(MIB) == MIB
        newcomer = ApplianceClient(parse_endpoint(guarded.endpoint), guarded.access, call_seconds=20)
        assert newcomer.inventory().leases
        newcomer.close()
        lease = guarded.lease(SHARE)
        assert lease.session().grant(MIB) == MIB
        lease.close()
        for first in strangers.first_of_each_port():
            assert ended(first), "one address cannot keep all places"
    tenant.close()


def ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize("port", [0, 1], ids=["control", "data"])
def test_tls_is_1_3_or_nothing(guarded: StandIn, port: int) -> None:
    def version(most: ssl.TLSVersion) -> str | None:
        context = ssl.create_default_context(cafile=str(guarded.access.ca))
        context.maximum_version = most
        address = ("127.0.0.1", ports(guarded)[port])
        with (
            socket.create_connection(address, 5) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
        ):
            return secured.version()

    assert version(ssl.TLSVersion.TLSv1_3) == "TLSv1.3"
    with pytest.raises((ssl.SSLError, ConnectionError)):
        version(ssl.TLSVersion.TLSv1_2)


def test_a_message_to_the_control_port_is_small(guarded: StandIn) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        guarded.client._stub.Hello(pb.HelloRequest(lease_id="x" * MIB), timeout=20)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_connection_to_the_control_port_has_few_calls_at_a_time(appliance: StandIn) -> None:
    """Reads the server's HTTP/2 settings (RFC 9113, 6.5): a list of numbers and values."""
    with socket.create_connection(("127.0.0.1", parse_endpoint(appliance.endpoint).port), 20) as connection:
        connection.sendall(HTTP2_PREFACE)
        with connection.makefile("rb") as stream:
            length, kind = struct.unpack(">xHB5x", stream.read(9))
            assert kind == 4, "the first frame says the settings"
            settings = dict(struct.iter_unpack(">HI", stream.read(length)))
    most_calls = 3
    assert settings[most_calls] <= 100


def endless(stream: int) -> bytes:
    """A part of a gRPC message; its announced length is the largest that libraries accept."""
    return http2.frame(http2.DATA, 0, stream, b"\0" + struct.pack(">I", 3 * MIB) + bytes(16379))


@pytest.mark.parametrize("port", ["control", "data"])
def test_of_who_has_proved_nothing_little_is_taken(appliance: StandIn, port: str) -> None:
    """Messages that never end, on as many streams as are allowed. The gateway may keep what it takes; the rest fills
    the kernel's buffers, which are small here, and then stops the sender.
    """
    address = parse_endpoint(appliance.endpoint)
    number = address.port if port == "control" else appliance.client.hello().data_port
    path = "/remotegpu.v1.Control/Inventory" if port == "control" else "/remotegpu.v1.Data/Session"
    with socket.socket() as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 << 10)
        stranger.connect((address.host, number))
        stranger.settimeout(20)
        stranger.sendall(http2.PREFACE + http2.settings({}))
        buffer, seen = bytearray(), set()
        while http2.WINDOW_UPDATE not in seen and not (port == "control" and http2.SETTINGS in seen):
            seen |= {kind for kind, _, _ in http2.frames(stranger, buffer)}
        stranger.setblocking(False)
        streams = range(1, 121, 2)
        headers = http2.call(path, appliance.endpoint, "none")
        data = http2.frame(http2.SETTINGS, http2.ACK, 0) + b"".join(
            http2.frame(http2.HEADERS, http2.END_HEADERS, each, headers) for each in streams
        )
        more, taken = itertools.cycle(map(endless, streams)), 0
        # Until nothing is taken for a while, or the gateway closes the connection.
        with contextlib.suppress(ConnectionError):
            while taken < 15 * MIB and select.select([], [stranger], [], 2)[1]:
                sent = stranger.send(data)
                taken, data = taken + sent, data[sent:] or next(more)
    assert taken < 2 * MIB, "of that, most lies in the kernel's buffers"
