"""Tests of the webhook's process: certificates, probes, metrics, limits, and a shutdown that loses no request."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.system import open_files, until
from support.webhook import Replica, issue, pod, replica

from remotegpu.api.kubernetes import FRACTION


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def running(certificates: Path) -> Iterator[tuple[Replica, bytes]]:
    authority = issue(certificates)
    with replica(certificates) as it:
        yield it, authority


def connected(it: Replica, authority: bytes) -> contextlib.closing[http.client.HTTPSConnection]:
    context = ssl.create_default_context(cadata=authority.decode())
    return contextlib.closing(http.client.HTTPSConnection("127.0.0.1", it.port, context=context, timeout=20))


def post(it: Replica, authority: bytes, body: str, path: str = "/mutate-pods") -> tuple[int, str]:
    with connected(it, authority) as connection:
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read().decode()


def review(document: dict[str, Any]) -> str:
    resource = {"group": "", "version": "v1", "resource": "pods"}
    request = {"uid": "u", "resource": resource, "operation": "CREATE", "object": document}
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})


def accepted(it: Replica, authority: bytes) -> bool:
    try:
        return post(it, authority, review(pod("p", {FRACTION: "1"})))[0] == 200
    except (ssl.SSLError, ConnectionError):
        return False


def test_it_waits_for_its_certificate_and_takes_the_next_one(certificates: Path) -> None:
    with replica(certificates, ready=False) as it:
        status, text = it.get("/readyz")
        assert (status, text) == (503, f"no certificate in {certificates} yet\n")
        first = issue(certificates)
        until(lambda: it.get("/readyz")[0] == 200, 20, "the certificate is read")
        assert accepted(it, first)
        # The key does not match the certificate: the process reads the files in the middle of a rotation.
        whole = {name: (certificates / name).read_bytes() for name in ("tls.crt", "tls.key")}
        second = issue(certificates)
        (certificates / "tls.crt").write_bytes(whole["tls.crt"])
        until(lambda: "no certificate" in it.log.read_text().split("read from")[-1], 20, "seen")
        assert accepted(it, first)
        second = issue(certificates)
        until(lambda: accepted(it, second), 20, "the next certificate is in use")


def test_requests_that_are_not_an_api_servers_are_refused(running: tuple[Replica, bytes]) -> None:
    it, authority = running
    assert post(it, authority, "{")[0] == 400
    status, text = post(it, authority, "{}")
    assert (status, text) == (400, "not an AdmissionReview of a pod or a pod template: KeyError('request')\n")
    assert post(it, authority, "{}", path="/")[0] == 404
    assert post(it, authority, "x" * (9 << 20))[0] == 413
    assert accepted(it, authority)


def resident(it: Replica) -> int:
    """Returns the peak of the process's resident memory, in bytes."""
    (line,) = re.findall(r"^VmHWM:\s+(\d+) kB$", Path(f"/proc/{it.process.pid}/status").read_text(), re.MULTILINE)
    return int(line) << 10


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("[" + "{}," * (7 << 20 >> 2) + "{}]", "parts"),
        ("[" * 200_001, "parts"),
        ("[" * 101 + "]" * 101, "nested"),
        ('{"a":' * 900 + "1" + "}" * 900, "nested"),
        ('"' + "[{" * 100 + '"', "not an AdmissionReview"),
        ('"\\"' + "[{" * 100 + '"', "not an AdmissionReview"),
    ],
)
def test_a_body_that_costs_more_than_its_bytes_is_refused(running: tuple[Replica, bytes], body: str, says: str) -> None:
    it, authority = running
    assert accepted(it, authority)
    before = resident(it)
    status, text = post(it, authority, body)
    assert (status, says in text) == (400, True), text
    assert resident(it) - before < 64 << 20
    assert accepted(it, authority)


def test_bodies_that_do_not_end_are_let_go_and_keep_nobody_out(running: tuple[Replica, bytes]) -> None:
    it, authority = running
    assert accepted(it, authority)
    before = resident(it)
    with contextlib.ExitStack() as held:
        slow = [held.enter_context(connected(it, authority)) for _ in range(40)]
        for connection in slow:
            connection.putrequest("POST", "/mutate-pods")
            connection.putheader("Content-Length", str(7 << 20))
            connection.endheaders(b"x" * (300 << 10))
        assert accepted(it, authority)
        assert {connection.getresponse().status for connection in slow} == {408}
    assert resident(it) - before < 64 << 20


@pytest.mark.parametrize("sends", ["nothing", "a byte", "a head"])
def test_those_who_sit_still_keep_nobody_out_and_leave(running: tuple[Replica, bytes], sends: str) -> None:
    """One peer opens 500 silent connections, before or after the TLS handshake. The limit of the peer applies."""
    it, authority = running
    assert accepted(it, authority)
    before = resident(it)
    context = ssl.create_default_context(cadata=authority.decode())
    with contextlib.ExitStack() as held:
        for _ in range(500):
            stranger = held.enter_context(socket.create_connection(("127.0.0.1", it.port), 20))
            if sends == "a byte":
                stranger.sendall(b"\x16")
            elif sends == "a head":
                with contextlib.suppress(OSError):
                    stranger = held.enter_context(context.wrap_socket(stranger, server_hostname="127.0.0.1"))
                    stranger.sendall(b"POST /mutate-pods HTTP/1.1\r\n")
        assert accepted(it, authority)
        assert connections(it) <= 320 + 1
        until(lambda: connections(it) == 0, 20, "those without a request leave")
    assert resident(it) - before < 64 << 20


def test_what_an_api_server_has_under_way_is_all_answered(running: tuple[Replica, bytes]) -> None:
    """200 concurrent requests on new TLS connections: an API server's default limit for mutating requests."""
    it, authority = running
    body, together = review(pod("p", {FRACTION: "1"})), threading.Barrier(200)

    def ask(_: int) -> int:
        together.wait(60)
        return post(it, authority, body)[0]

    with ThreadPoolExecutor(200) as threads:
        assert set(threads.map(ask, range(200))) == {200}


def connections(it: Replica) -> int:
    """Returns the number of open connections to the replica's admission port, from the replica's descriptors."""
    inodes = set(open_files(it.process.pid).values())
    lines = [line.split() for line in Path(f"/proc/{it.process.pid}/net/tcp").read_text().splitlines()[1:]]
    port, established = f":{it.port:04X}", "01"
    ours = [each for each in lines if each[1].endswith(port) and each[3] == established]
    return sum(f"socket:[{each[9]}]" in inodes for each in ours)


def test_a_body_that_is_too_large_is_refused_by_its_length(running: tuple[Replica, bytes]) -> None:
    it, authority = running
    with connected(it, authority) as connection:
        connection.putrequest("POST", "/mutate-pods")
        connection.putheader("Content-Length", str(1 << 40))
        connection.endheaders()
        assert connection.getresponse().status == 413


def test_probes_and_metrics(running: tuple[Replica, bytes]) -> None:
    it, authority = running
    assert it.get("/healthz") == (200, "ok\n")
    assert accepted(it, authority)
    assert '"allowed": false' in post(it, authority, review(pod("p", {FRACTION: "1500m"})))[1]
    _, metrics = it.get("/metrics")
    for outcome in ("allowed", "refused"):
        assert f'remotegpu_webhook_seconds_count{{outcome="{outcome}",path="/mutate-pods"}} 1.0' in metrics
    assert "1.5 is neither" in it.log.read_text()


def test_going_it_says_so_and_answers_what_still_comes(certificates: Path) -> None:
    authority = issue(certificates)
    with replica(certificates, "--drain=20") as it, connected(it, authority) as connection:
        body = review(pod("p", {FRACTION: "1"}))

        def ask() -> http.client.HTTPResponse:
            connection.request("POST", "/mutate-pods", body)
            response = connection.getresponse()
            response.read()
            return response

        assert ask().getheader("Connection") != "close"
        it.process.send_signal(signal.SIGTERM)
        until(lambda: it.get("/readyz") == (503, "stopping\n"), 20, "it says that it is going")
        assert accepted(it, authority)
        # Otherwise the API server would send its next request on this connection to a process that ends.
        response = ask()
        assert (response.status, response.getheader("Connection")) == (200, "close")
        it.process.kill()


def test_several_processes_share_a_port(certificates: Path) -> None:
    authority = issue(certificates)
    with replica(certificates, "--reuse-port") as one, replica(certificates, "--reuse-port", port=one.port) as other:

        def both_were_asked() -> bool:
            return accepted(one, authority) and all("/mutate-pods" in it.get("/metrics")[1] for it in (one, other))

        until(both_were_asked, 20, "the system gives connections to both")
