"""Input from a stranger, a page's reader or a stored object is an error of its sender: no part of ours ends, and others
are served. Each test lasts as long as REMOTEGPU_FUZZ_SECONDS says, and starts from committed seeds.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import jsonschema
import pytest
import yaml
from support.mutation import changed, changed_bytes, for_a_while, seeds, with_other_texts
from support.stand_in import StandIn, make_dist
from support.system import ROOT, free_port

from remotegpu.api.claims import GPUClaim
from remotegpu.api.objects import readable
from remotegpu.api.pools import GPUPool
from remotegpu.api.usage import HEAD, JOURNAL, USAGE_LABEL, Holding, Share, journal_name, read
from remotegpu.appliance.shares.claims import BadClaimError, claim_of_appliance
from remotegpu_operator.allocation import request_of
from remotegpu_operator.appliances.tokens import tokens
from remotegpu_operator.builders.appliances import plans
from remotegpu_operator.claims.why import explain
from remotegpu_operator.cluster.kube import Api, Resource
from remotegpu_operator.dashboard.live import Live
from remotegpu_operator.dashboard.loads import Loads
from remotegpu_operator.dashboard.server import Dashboard
from remotegpu_operator.dashboard.snapshot import snapshot_of
from remotegpu_operator.dashboard.usage import RANGES, Recorded, usage_of, usage_of_claim
from remotegpu_operator.serving.door import runner_of
from remotegpu_operator.webhook import body
from remotegpu_operator.webhook.mutate import ReviewError, answer

SEEDS = Path(__file__).parent / "seeds"
MIB = 1 << 20
GOOD: dict[str, Any] = {
    "metadata": {"namespace": "good", "name": "claim", "uid": "good", "creationTimestamp": "2026-01-01T00:00:00Z"},
    "spec": {"fraction": "0.25"},
}
NOW = datetime.datetime(2026, 1, 2, 12, tzinfo=datetime.UTC)


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    return make_dist(tmp_path / "dist")


def test_an_admission_review_is_answered_or_is_none() -> None:
    """A malformed review raises only ReviewError or ValueError, which the server answers with a 400."""
    known = seeds(SEEDS / "reviews.json")
    for chance in for_a_while("review"):
        text = json.dumps(changed(chance.choice(known), chance)).encode()
        if chance.randrange(4) == 0:
            text = changed_bytes(text, chance)
        with contextlib.suppress(ReviewError, ValueError):
            json.dumps(answer(body.parse(text)))


def schema_of(kind: str) -> jsonschema.Draft202012Validator:
    """Types, patterns and limits, as the API server checks them; not the rules in CEL."""
    (crd,) = yaml.safe_load_all((ROOT / "crds" / f"{kind.lower()}s.yaml").read_text())
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return jsonschema.Draft202012Validator({"type": "object", "properties": schema["properties"]})


def test_a_stored_object_is_its_own_error() -> None:
    """Objects have the metadata that an API server gives every object."""
    known: list[dict[str, Any]] = seeds(SEEDS / "objects.json")
    metadata = {"namespace": "team", "name": "claim", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    storable = {kind: schema_of(kind) for kind in ("GPUClaim", "GPUPool")}
    for chance in for_a_while("object"):
        seed = chance.choice(known)
        parts = changed({key: seed[key] for key in ("spec", "status")}, chance)
        parts = parts if isinstance(parts, dict) else {}
        # The API server ensures that these two are objects.
        made = {"metadata": metadata} | {key: each for key, each in parts.items() if isinstance(each, dict)}
        claims, pools = ([made, GOOD], []) if seed["kind"] == "GPUClaim" else ([GOOD], [made])
        if seed["kind"] == "GPUClaim":
            for claim in readable(GPUClaim.from_object, [made]):
                request_of(claim)
            with contextlib.suppress(BadClaimError):
                claim_of_appliance(made, "a")
        else:
            for pool in readable(GPUPool.from_object, [made]):
                plans(pool, [])
        if not storable[seed["kind"]].is_valid(made):
            continue
        stored = {"gpuclaims": claims, "gpupools": pools, "resourcequotas": [], "priorityclasses": [], "pods": []}
        assert "good/claim" in snapshot_of(stored, NOW)["claims"]
        assert explain("good", "claim", stored, NOW).claim == "good/claim"


def test_other_objects_are_their_own_errors() -> None:
    """Pods, quotas, classes, and the record of usage that the operator keeps."""
    known: list[dict[str, Any]] = seeds(SEEDS / "others.json")
    plurals = {"Pod": "pods", "ResourceQuota": "resourcequotas", "PriorityClass": "priorityclasses"}
    kept = Holding("kept", "good", "claim", "", "default", (Share("A100", 500, MIB),), int(NOW.timestamp()) - 60)
    for chance in for_a_while("other"):
        seed = chance.choice(known)
        made = with_other_texts({key: each for key, each in seed.items() if key not in ("spec", "status")}, chance)
        made |= {key: seed[key] for key in ("spec", "status") if key in seed}
        stored: dict[str, list[Any]] = {plural: [] for plural in plurals.values()}
        stored |= {"gpuclaims": [GOOD], "gpupools": []}
        if seed["kind"] in plurals:
            stored[plurals[seed["kind"]]].append(made)
            assert "good/claim" in snapshot_of(stored, NOW)["claims"]
            assert explain("good", "claim", stored, NOW).claim == "good/claim"
            continue
        made["metadata"]["labels"] = seed["metadata"]["labels"]  # by which it was found
        journal = {"name": journal_name(7), "labels": {USAGE_LABEL: JOURNAL}}
        head = {"name": "remotegpu-usage", "labels": {USAGE_LABEL: HEAD}}
        until = {"until": str(int(NOW.timestamp()))}
        others = [{"metadata": journal, "data": {"000000": kept.line()}}, {"metadata": head, "data": until}]
        record = read([*others, made])
        for length in RANGES:
            rows = usage_of(record, length, "claim", {}, int(NOW.timestamp()))["rows"]
            # Without a head nothing is known.
            assert seed["metadata"]["labels"][USAGE_LABEL] == HEAD or "good/claim" in {row["name"] for row in rows}
        json.dumps(usage_of_claim(record, "good", "claim", {}, int(NOW.timestamp())))


def test_requests_to_a_page_keep_nobody_out(dist: Path) -> None:
    """Requests to an appliance's dashboard, and to its metrics."""
    page, metrics = free_port(), free_port()
    options = ("--dashboard", f"127.0.0.1:{page}", "--metrics-port", str(metrics))
    known = [
        b"GET /api/snapshot HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer token\r\n\r\n",
        b"GET /api/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n",
        b"GET /static/app.js HTTP/1.0\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: keep-alive\r\n\r\nGET /healthz HTTP/1.1\r\n\r\n",
        b"POST /api/load HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    ]
    with StandIn(dist, *options) as appliance:
        for chance in for_a_while("page"):
            address = "127.0.0.1", chance.choice([page, metrics])
            with contextlib.suppress(OSError), socket.create_connection(address, 20) as connection:
                connection.sendall(changed_bytes(chance.choice(known), chance))
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass
        for port, path in ((page, "/"), (metrics, "/healthz")):
            with socket.create_connection(("127.0.0.1", port), 20) as connection:
                head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n"
                connection.sendall(head.encode())
                assert b" 200 " in connection.recv(65536)
        assert appliance.process.poll() is None
        assert "Traceback" not in appliance.log, appliance.log[-4000:]


class Stored(Live):
    """The dashboard's view of a cluster that has one claim."""

    def __init__(self) -> None:
        super().__init__(cast("Api", None))

    @property
    def problem(self) -> str:
        return ""

    def _objects(self) -> dict[str, list[Any]]:
        empty: dict[str, list[Any]] = {"gpupools": [], "resourcequotas": [], "priorityclasses": [], "pods": []}
        return empty | {"gpuclaims": [GOOD]}


class Reviews:
    """An API server that knows the token of one reader, who may list everything, and has no events and no record."""

    async def create(self, kind: Resource, _: None, body: dict[str, Any]) -> dict[str, Any]:
        if kind.kind == "SubjectAccessReview":
            return {"status": {"allowed": True}}
        known = body["spec"]["token"] == "token"
        return {"status": {"authenticated": known} | ({"user": {"username": "reader"}} if known else {})}

    async def list_as(self, *_: object) -> list[Any]:
        return []

    async def list(self, *_: object) -> tuple[list[Any], str]:
        return [], ""


async def _answers(requests: Iterator[bytes]) -> list[bytes]:
    """First lines of the operator's dashboard's replies, each on a connection of its own."""
    api = cast("Api", Reviews())
    live = Stored()
    loads = Loads(api, "system", tokens(api, "system", None, None), live.appliances)
    dashboard = Dashboard(api, live, Recorded(api, "system"), loads)
    runner, found = runner_of(dashboard.application(), shutdown_timeout=1), []
    await runner.setup()
    port = free_port()
    assert runner.server is not None
    async with dashboard.door.open(runner.server, "127.0.0.1", port):
        for request in requests:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            # A request without an end gets one; a request whose body does not come is left.
            writer.write(request + b"\r\n\r\n")
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(1):
                    found.append(await reader.readline())
            writer.close()
    await runner.cleanup()
    loads.close()
    return found


def test_requests_to_the_dashboard_of_a_cluster_are_no_errors_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    """Requests of a reader with a token, and of strangers. An event stream is left after its first line."""
    end = b" HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer token\r\n\r\n"
    ways = ["snapshot", "load", "usage?range=day&by=claim", "events"]
    ways += [f"claims/good/claim/{each}" for each in ("why", "usage", "events")]
    known = [b"GET /api/" + way.encode() + end for way in ways]
    known += [b"GET /static/app.js" + end, b"POST /api/snapshot" + end, b"GET /" + end]
    statuses: Counter[bytes] = Counter()
    # A few at a time: each round has a new server, as the one before might be damaged.
    for chance in for_a_while("dashboard", least=20):
        changed_ones = [changed_bytes(chance.choice(known), chance) for _ in range(50)]
        lines = asyncio.run(_answers(iter([*changed_ones, known[0]])))
        statuses.update(line.split(b" ")[1] for line in lines if line.startswith(b"HTTP/"))
        assert lines[-1] == b"HTTP/1.1 200 OK\r\n"
    assert statuses[b"500"] == 0, statuses
    assert caplog.records == [], "strangers write nothing into the log"
    assert statuses[b"200"] and statuses[b"400"] and statuses[b"401"] and statuses[b"404"], statuses
