"""Whatever an appliance refuses to a stranger or a tenant is counted once and in its log, in one line."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from support.stand_in import StandIn, Tenant
from support.system import free_port, until

from remotegpu.api.quantities import Ask
from remotegpu.rpc import WIRE_VERSION, pb
from remotegpu.rpc.client import Access

OURS = pb.Versions(wire=WIRE_VERSION, table_hash=7, program="test")
OTHERS = pb.Versions(wire=1, oldest=1, table_hash=8, program="old\x1b[2J\nline")
NOBODYS, WRONG = "ab" * 16, "cd" * 32
HERE = "127.0.0.1:7070"


class House(NamedTuple):
    appliance: StandIn
    metrics: int
    page: int
    lease: Tenant  # alice's

    def refusals(self) -> Counter[str]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics}/metrics", timeout=5) as answer:
            found = re.findall(
                r'^remotegpu_refusals_total\{reason="(\w+)"\} (\S+)$', answer.read().decode(), re.MULTILINE
            )
        return Counter({reason: int(float(count)) for reason, count in found})

    def lines(self) -> list[str]:
        return [line for line in self.appliance.log.splitlines() if "audit: refused" in line]


@pytest.fixture(scope="module")
def house(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    tokens = tmp_path_factory.mktemp("refusals") / "tokens"
    tokens.write_text("[admin]\nroot:zero\n[user]\nalice:one\nbob:two\n")
    metrics, page = free_port(), free_port()
    options = ("--tokens", str(tokens), "--metrics-port", str(metrics), "--dashboard", f"127.0.0.1:{page}")
    with StandIn(dist, *options, access=Access("one")) as appliance:
        yield House(appliance, metrics, page, appliance.lease(Ask(milli_per_gpu=100)))


Make = Callable[[House], Any]

# Method, the token that is shown, the request, and a part of the message that refuses it.
REFUSED: list[tuple[str, str, Make, str]] = [
    ("Hello", "", lambda _: pb.HelloRequest(versions=OTHERS), "versions do not fit"),
    ("Hello", "two", lambda _: pb.HelloRequest(versions=OURS, lease_id=NOBODYS), "no such lease"),
    ("OpenLease", "", lambda _: pb.OpenLeaseRequest(versions=OURS, count=1, milli=10), "wants a token"),
    ("OpenLease", "one", lambda _: pb.OpenLeaseRequest(versions=OTHERS, count=1, milli=10), "versions do not fit"),
    ("OpenLease", "one", lambda _: pb.OpenLeaseRequest(versions=OURS, count=1, milli=2000), "more than one GPU"),
    ("OpenLease", "one", lambda _: pb.OpenLeaseRequest(versions=OURS, count=9, milli=1000), "this appliance has 1 GPU"),
    ("OpenLease", "one", lambda _: pb.OpenLeaseRequest(versions=OURS, count=1, milli=1000), "is not free"),
    ("CloseLease", "two", lambda house: closing(house, WRONG), "not its secret"),
    ("SuspendLease", "two", lambda house: pb.SuspendLeaseRequest(lease_id=house.lease.granted.lease_id), "not yours"),
    ("ResumeLease", "two", lambda house: pb.ResumeLeaseRequest(lease_id=house.lease.granted.lease_id), "not yours"),
    ("ResizeLease", "two", lambda house: resizing(house, milli=5), "not yours"),
    ("ResizeLease", "one", lambda house: resizing(house, milli=5, memory_bytes=5), "exactly one of them"),
    ("ResizeLease", "one", lambda house: resizing(house, memory_bytes=1 << 40), "NoRoom"),
    ("InviteLease", "", lambda _: pb.InviteLeaseRequest(), "wants a token"),
    ("ReceiveLease", "two", lambda _: pb.ReceiveLeaseRequest(versions=OURS, invitation=WRONG), "invitation is unknown"),
    ("SettleLease", "two", lambda _: pb.SettleLeaseRequest(invitation=WRONG), "invitation is unknown"),
    ("MoveLease", "two", lambda house: moving(house, HERE), "not yours"),
    ("MoveLease", "one", lambda house: moving(house, "nowhere\x1b[2J\n"), "not HOST:PORT"),
    ("MoveLease", "one", lambda house: moving(house, HERE), "--move-to"),
    ("OpenSession", "one", lambda house: opening(house, versions=OTHERS), "versions do not fit"),
    ("OpenSession", "one", lambda house: opening(house, lease_secret=WRONG), "not its secret"),
    ("OpenSession", "one", lambda house: opening(house, offload=pb.Offload()), "no offload sessions"),
    ("CloseSession", "two", lambda house: ending(house), "not its secret"),
    ("DeviceState", "two", lambda _: pb.DeviceStateRequest(lease_id=NOBODYS), "no such lease"),
    ("Inventory", "three", lambda _: pb.InventoryRequest(), "does not know the token"),
    ("Health", "", lambda _: pb.HealthRequest(), "wants a token"),
    ("Drain", "one", lambda _: pb.DrainRequest(), "for administrators"),
]  # fmt: skip


def closing(house: House, secret: str) -> pb.CloseLeaseRequest:
    return pb.CloseLeaseRequest(lease_id=house.lease.granted.lease_id, lease_secret=secret)


def resizing(house: House, **size: int) -> pb.ResizeLeaseRequest:
    return pb.ResizeLeaseRequest(lease_id=house.lease.granted.lease_id, **size)


def moving(house: House, to: str) -> pb.MoveLeaseRequest:
    return pb.MoveLeaseRequest(lease_id=house.lease.granted.lease_id, to=to, invitation=WRONG)


def opening(house: House, **fields: Any) -> pb.OpenSessionRequest:
    granted = house.lease.granted
    known: dict[str, Any] = {"versions": OURS, "lease_id": granted.lease_id, "lease_secret": granted.lease_secret}
    return pb.OpenSessionRequest(**(known | fields))


def ending(house: House) -> pb.CloseSessionRequest:
    return pb.CloseSessionRequest(session_id=house.lease.open_session().session_id, lease_secret=WRONG)


def what_is_said(house: House, method: str, token: str, request: Any) -> tuple[str, str]:
    """The status, and the sentence of a refusal."""
    call = getattr(house.appliance.client._stub, method)
    try:
        answer = call(request, metadata=(("authorization", f"Bearer {token}"),) if token else (), timeout=20)
        answer = list(answer)[-1] if hasattr(answer, "__next__") else answer
    except grpc.RpcError as error:
        return error.code().name.lower(), error.details() or ""
    return "failed_precondition", answer.refusal


NAMES = [f"{method}-{number}" for number, (method, *_) in enumerate(REFUSED)]


@pytest.mark.parametrize(("method", "token", "make", "says"), REFUSED, ids=NAMES)
def test_a_refusal_is_counted_once_and_logged_in_a_line(
    house: House, method: str, token: str, make: Make, says: str
) -> None:
    request = make(house)
    before, lines = house.refusals(), house.lines()
    status, said = what_is_said(house, method, token, request)
    assert says in said
    until(lambda: len(house.lines()) > len(lines), 5, "it is in the log")
    (line,) = house.lines()[len(lines) :]
    assert f"audit: refused {method} from 127.0.0.1:" in line and says in line
    assert line.isprintable() and len(line) < 800
    assert house.refusals() - before == Counter({status: 1})


def test_every_call_is_tried() -> None:
    service = pb.DESCRIPTOR.services_by_name["Control"]
    assert {method for method, *_ in REFUSED} == {method.name for method in service.methods}


def test_an_answer_is_no_refusal(house: House) -> None:
    before = house.refusals()
    house.appliance.client.inventory()
    assert house.lease.open_session().session_id
    assert house.refusals() == before


@pytest.mark.parametrize(
    ("path", "token", "reason", "says"),
    [
        ("/api/snapshot", "", "unauthenticated", "wants a token"),
        ("/api/events", "wrong", "unauthenticated", "does not know the token"),
        ("/api/other", "one", "not_found", "there is no /api/other"),
    ],
)
def test_what_the_page_refuses_is_too(house: House, path: str, token: str, reason: str, says: str) -> None:
    before, lines = house.refusals(), house.lines()
    asked = urllib.request.Request(f"http://127.0.0.1:{house.page}{path}")
    if token:
        asked.add_header("Authorization", f"Bearer {token}")
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(asked, timeout=10)
    until(lambda: len(house.lines()) > len(lines), 5, "it is in the log")
    (line,) = house.lines()[len(lines) :]
    assert "audit: refused dashboard from 127.0.0.1:" in line and says in line
    assert house.refusals() - before == Counter({reason: 1})
