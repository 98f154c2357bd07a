"""Claims for which an appliance has no room, and what it tells of them while leases of others end, without workers."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import uuid
from collections.abc import Callable
from typing import Any, cast
from unittest.mock import Mock

import pytest

from remotegpu.api.claims import Allocation, ClaimStatus, Phase, PodReference, lease_id_of
from remotegpu.appliance.claims.leases import ClaimLeases
from remotegpu.appliance.leases.leases import Leases
from remotegpu.appliance.metrics import Counters
from remotegpu.appliance.service import ControlService
from remotegpu.appliance.settings import Limits
from remotegpu.appliance.shares.allocation import GpuLeases
from remotegpu.appliance.shares.views import PhysicalGpu
from remotegpu.rpc import pb

MIB = 1 << 20
GPUS = [PhysicalGpu("GPU", bytes([number] * 16), 1024 * MIB, (0, number, 0), {}) for number in range(2)]
POD = "pod-1"
_CREATED = itertools.count()

Object = dict[str, Any]


class Sessions:
    """Stands in for the workers. Those of a lease end when `ended` is set."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.leases: Any = None

    async def end(self, *_: object) -> None:
        await self.ended.wait()

    async def end_group(self, _: object) -> None:
        await self.ended.wait()


class Appliance:
    """The real leases of two GPUs of 1 GiB."""

    def __init__(self) -> None:
        self.sessions = Sessions()
        allocator = GpuLeases([gpu.memory_bytes for gpu in GPUS])
        sessions = cast("Any", self.sessions)
        self.leases = Leases(GPUS, allocator, Mock(), sessions, Limits(), 0, Counters())
        self.claims = ClaimLeases("here", self.leases, Mock(), GPUS)

    def report(self, owner: str | None = None) -> pb.InventoryReply:
        """Returns the reply to the operator, or to an `owner` of leases."""
        parts: Any = {name: Mock() for name in inspect.signature(ControlService).parameters}
        parts |= {"leases": self.leases, "unserved": self.claims.unserved, "name": "here"}
        parts["hardware"].snapshot = Mock(gpus=GPUS, table_hash=7, driver_version=13000)
        parts["backend"].name, parts["environments"].alive.return_value = "software", []
        return ControlService(**parts).inventory(owner)

    @property
    def refused(self) -> set[str]:
        unserved = self.claims.unserved()
        assert unserved is not None, "the claims are known"
        return set(unserved)

    @property
    def served(self) -> set[str]:
        return {lease.lease_id for lease in self.leases.all()}

    async def finish_ends(self) -> None:
        self.sessions.ended.set()
        await self.leases.finish_ends()


def claim(name: str, mib: int, gpu: int = 0, pods: tuple[str, ...] = (POD,), created: int | None = None) -> Object:
    there = Allocation("here", "node", GPUS[gpu].uuid_text, "GPU", mib * MIB, milli=1)
    status = ClaimStatus(Phase.ALLOCATED, allocations=(there,), consumers=tuple(PodReference(p, p) for p in pods))
    second = next(_CREATED) if created is None else created
    uid, when = str(uuid.uuid5(uuid.NAMESPACE_DNS, name)), f"2026-11-30T18:00:{second:02}Z"
    metadata = {"uid": uid, "namespace": "team", "name": name, "creationTimestamp": when}
    return {"metadata": metadata, "spec": {}, "status": status.to_object()}


def ids(*claims: Object) -> set[str]:
    return {lease_id_of(each["metadata"]["uid"]) for each in claims}


def test_a_refused_claim_is_told_of_while_and_after_the_lease_of_another_ends() -> None:
    async def scenario() -> None:
        one = Appliance()
        runs, refused, ends = claim("runs", 600), claim("refused", 600), claim("ends", 600, gpu=1)
        one.claims.listed([runs, refused, ends])
        assert (one.served, one.refused) == (ids(runs, ends), ids(refused))
        one.claims.deleted(ends)
        # Any change has the appliance look again. The refused claim has no room meanwhile, as before.
        one.claims.changed(runs)
        assert one.refused == ids(refused)
        await one.finish_ends()
        assert one.refused == ids(refused)

    asyncio.run(scenario())


def test_a_claim_that_comes_while_a_lease_ends_is_refused_after_the_end() -> None:
    async def scenario() -> None:
        one = Appliance()
        runs, ends, comes = claim("runs", 600), claim("ends", 600, gpu=1), claim("comes", 600)
        one.claims.listed([runs, ends])
        one.claims.deleted(ends)
        one.claims.changed(comes)
        assert one.refused == set(), "the memory that becomes free may be its own"
        await one.finish_ends()
        assert one.refused == ids(comes)

    asyncio.run(scenario())


def test_a_claim_whose_memory_is_being_freed_is_not_refused() -> None:
    async def scenario() -> None:
        one = Appliance()
        ends, follows = claim("ends", 600), claim("follows", 600)
        one.claims.listed([ends])
        one.claims.deleted(ends)
        one.claims.changed(follows)
        assert (one.served, one.refused) == (set(), set())
        await one.finish_ends()
        assert (one.served, one.refused) == (ids(follows), set())

    asyncio.run(scenario())


def test_a_claim_is_refused_while_only_sessions_of_another_end() -> None:
    """A session that ends frees no share, so nobody looks again after it."""

    async def scenario() -> None:
        one = Appliance()
        runs = claim("runs", 600)
        one.claims.listed([runs])
        lease = one.leases.by_id(*ids(runs))
        assert lease is not None
        lease.sessions["its"] = Mock(pod=POD)
        one.claims.changed(claim("runs", 600, pods=("another",)))
        refused = claim("refused", 600)
        one.claims.changed(refused)
        assert one.refused == ids(refused)
        await one.finish_ends()

    asyncio.run(scenario())


def test_a_claim_that_is_placed_anew_is_not_refused_for_what_it_had() -> None:
    async def scenario() -> None:
        one = Appliance()
        runs, ends = claim("runs", 600), claim("ends", 600, gpu=1)
        one.claims.listed([runs, ends, claim("refused", 600)])
        one.claims.deleted(ends)
        anew = claim("refused", 600, gpu=1)
        one.claims.changed(anew)
        assert one.refused == set()
        await one.finish_ends()
        assert (one.served, one.refused) == (ids(runs, anew), set())

    asyncio.run(scenario())


@pytest.mark.parametrize("order", [list, lambda claims: claims[::-1]], ids=["first", "last"])
def test_what_was_made_first_is_placed_first(order: Callable[[list[Object]], list[Object]]) -> None:
    """Restarts an appliance, where a claim that came back with a backup has a name before all others."""

    async def scenario() -> None:
        one = Appliance()
        restored, runs = claim("a", 1024, created=9), [claim("b", 500, created=1), claim("c", 500, created=2)]
        one.claims.listed(order([restored, *runs]))
        assert (one.served, one.refused) == (ids(*runs), ids(restored))

    asyncio.run(scenario())


def test_until_it_has_read_the_claims_it_says_so() -> None:
    async def scenario() -> None:
        one = Appliance()
        one.claims.unreachable("connection refused")
        assert (one.report().claims_unknown, list(one.report().unserved)) == (True, [])
        assert not one.report(owner="alice").claims_unknown, "that is not for others"
        refused = claim("refused", 2048)
        one.claims.listed([refused])
        one.claims.unreachable("connection refused")
        assert not one.report().claims_unknown, "what it knew stays valid"
        assert {each.lease_id for each in one.report().unserved} == ids(refused)

    asyncio.run(scenario())
