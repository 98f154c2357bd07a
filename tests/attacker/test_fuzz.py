"""Whatever a stranger, a reader of a page or a stored object says to a part of ours is an error of who said it: nobody
ends, and others are served. Each for as long as REMOTEGPU_FUZZ_SECONDS says, from committed seeds."""

from __future__ import annotations

import contextlib
import datetime
import json
import socket
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from support.mutation import changed, changed_bytes, for_a_while, seeds
from support.stand_in import StandIn, make_dist
from support.system import ROOT, free_port

from remotegpu.api.claims import GPUClaim
from remotegpu.api.objects import readable
from remotegpu.api.pools import GPUPool
from remotegpu.appliance.claims import BadClaimError, claim_of_appliance
from remotegpu_operator.allocation import request_of
from remotegpu_operator.builders.appliances import plans
from remotegpu_operator.dashboard.snapshot import snapshot_of
from remotegpu_operator.webhook import body
from remotegpu_operator.webhook.mutate import ReviewError, answer
from remotegpu_operator.why import explain

SEEDS = Path(__file__).parent / "seeds"
NOW = datetime.datetime(2026, 1, 2, 12, tzinfo=datetime.UTC)


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    return make_dist(tmp_path / "dist")


def test_an_admission_review_is_answered_or_is_none() -> None:
    """What the server makes a 400 of is what it catches: ReviewError and ValueError."""
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
    """With the metadata that an API server gives every object."""
    known: list[dict[str, Any]] = seeds(SEEDS / "objects.json")
    metadata = {"namespace": "team", "name": "claim", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    good = {"metadata": metadata | {"namespace": "good", "uid": "good"}, "spec": {"fraction": "0.25"}}
    storable = {kind: schema_of(kind) for kind in ("GPUClaim", "GPUPool")}
    for chance in for_a_while("object"):
        seed = chance.choice(known)
        parts = changed({key: seed[key] for key in ("spec", "status")}, chance)
        parts = parts if isinstance(parts, dict) else {}
        # The API server holds these two to be objects.
        made = {"metadata": metadata} | {key: each for key, each in parts.items() if isinstance(each, dict)}
        claims, pools = ([made, good], []) if seed["kind"] == "GPUClaim" else ([good], [made])
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


def test_requests_to_a_page_keep_nobody_out(dist: Path) -> None:
    """Of the dashboard of an appliance, and of its metrics."""
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
