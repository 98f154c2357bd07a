"""The webhook's process: certificates that come late and change, probes, metrics, and a stop that loses no request."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.system import until
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
        # A key that does not belong to the certificate: half of a rotation, seen too early.
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
        # A connection that stays open would bind the API server to a process that goes.
        response = ask()
        assert (response.status, response.getheader("Connection")) == (200, "close")
        it.process.kill()


def test_several_processes_share_a_port(certificates: Path) -> None:
    authority = issue(certificates)
    with replica(certificates, "--reuse-port") as one, replica(certificates, "--reuse-port", port=one.port) as other:

        def both_were_asked() -> bool:
            return accepted(one, authority) and all("/mutate-pods" in it.get("/metrics")[1] for it in (one, other))

        until(both_were_asked, 20, "the system gives connections to both")
