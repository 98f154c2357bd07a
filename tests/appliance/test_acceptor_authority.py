"""The calls that an acceptor of offload may make: its connection identifies it, and it can use only its own lease."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest

from remotegpu.appliance.leases.authority import Authority, Caller, Tenant, WithAcceptors
from remotegpu.appliance.refusal import RefusalError
from remotegpu.appliance.sessions.sessions import Sessions
from remotegpu.appliance.sessions.state import Lease, Session

LEASE, OTHER = (cast(Lease, SimpleNamespace(lease_id=name)) for name in ("mine", "another's"))
SESSIONS = {
    name: cast(Session, SimpleNamespace(lease=LEASE, pod="pod", ended=ended))
    for name, ended in (("live", False), ("ending", True))
}


class Anybody:
    """Permits everything, like an appliance without tokens."""

    async def borrower(self, caller: Caller) -> str:
        return ""

    async def host(self, caller: Caller, lease_id: str) -> str:
        return ""

    async def administrator(self, caller: Caller) -> None: ...

    async def onlooker(self, caller: Caller) -> str | None:
        return None

    async def tenant(self, caller: Caller, lease_id: str, secret: str) -> Tenant:
        return Tenant(OTHER)

    async def owner(self, caller: Caller, lease_id: str, secret: str) -> Lease:
        return OTHER

    async def closer(self, caller: Caller, session: Session, secret: str) -> None: ...


def authority() -> Authority:
    sessions = cast(Sessions, SimpleNamespace(find=SESSIONS.get))
    return WithAcceptors(Anybody(), sessions)


def caller(peer: str, connection: int | None = 1) -> Caller:
    return Caller("Method", peer, token="whatever it has found", connection=connection)


CALLS: list[Callable[[Authority, Caller], Awaitable[Any]]] = [
    lambda of, who: of.borrower(who),
    lambda of, who: of.host(who, "another's"),
    lambda of, who: of.administrator(who),
    lambda of, who: of.onlooker(who),
    lambda of, who: of.owner(who, "another's", "its secret"),
    lambda of, who: of.closer(who, SESSIONS["live"], "its secret"),
]


@pytest.mark.parametrize("call", CALLS, ids=["open", "receive", "drain", "look", "end a lease", "end a session"])
def test_an_acceptor_may_do_nothing_but_use_a_lease(call: Callable[[Authority, Caller], Awaitable[Any]]) -> None:
    with pytest.raises(RefusalError) as refused:
        asyncio.run(cast(Any, call(authority(), caller("session:live"))))
    assert refused.value.code is grpc.StatusCode.PERMISSION_DENIED
    asyncio.run(cast(Any, call(authority(), caller("127.0.0.1:1"))))


def test_the_lease_is_that_of_its_session_whatever_it_names() -> None:
    tenant = asyncio.run(cast(Any, authority().tenant(caller("session:live"), "another's", "its secret")))
    assert tenant == Tenant(LEASE, "pod", acceptor=True)


@pytest.mark.parametrize("name", ["ending", "gone", ""])
def test_a_session_that_has_ended_has_no_lease(name: str) -> None:
    peer = f"session:{name}" if name else "session:x"
    with pytest.raises(RefusalError):
        asyncio.run(cast(Any, authority().tenant(caller(peer), "mine", "")))


def test_only_the_gateway_says_who_is_an_acceptor() -> None:
    """A connection without the gateway's number did not come from it."""
    for who in (caller("session:live", None), caller("127.0.0.1:1")):
        assert who.acceptor == ""
        assert asyncio.run(cast(Any, authority().tenant(who, "another's", ""))) == Tenant(OTHER)
