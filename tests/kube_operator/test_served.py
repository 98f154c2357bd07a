"""Which claims the reports of appliances confirm, without an API server."""

from __future__ import annotations

from dataclasses import replace

import pytest

from remotegpu.api.claims import Allocation, ClaimStatus, GPUClaim, Phase
from remotegpu.rpc import pb
from remotegpu_operator.appliances.inventory import report_of
from remotegpu_operator.claims.served import AVOIDED_SECONDS, REFUSED_SECONDS, Served

HERE = Allocation("here", "node", "GPU-1", "GPU", 1 << 30, milli=250)
STORED = {
    "metadata": {"name": "mine", "namespace": "team", "uid": "0-1", "creationTimestamp": "2026-11-30T18:00:00Z"},
    "spec": {"pool": "default", "count": 1, "fraction": "0.25"},
}
CLAIM = replace(GPUClaim.from_object(STORED), status=ClaimStatus(Phase.ALLOCATED, allocations=(HERE,)))
OTHER = replace(CLAIM, uid="0-2")
REFUSED = [pb.Unserved(lease_id=CLAIM.lease_id, why="no room")]


class Time:
    def __init__(self) -> None:
        self.now = 1000.0
        self.looks: list[tuple[str, float]] = []

        self.retries: list[tuple[str, float]] = []

    def served(self) -> Served:
        look, retry = self.looks, self.retries
        return Served(
            {CLAIM.uid: CLAIM},
            lambda uid, seconds: look.append((uid, seconds)),
            lambda uid, seconds: retry.append((uid, seconds)),
            lambda: self.now,
        )

    def refuse(self, served: Served, claim: GPUClaim = CLAIM) -> None:
        """The appliance refuses the claim until it loses its share there. It is placed anew before the next report."""
        served.told("here", {claim.lease_id: "no room"})
        assert not served.lost(claim)
        self.now += REFUSED_SECONDS
        assert "no room" in served.lost(claim)
        served.displaced(claim)


@pytest.mark.parametrize(
    ("reply", "confirmed"),
    [
        (pb.InventoryReply(), True),  # as of the release before, which does not know the field
        (pb.InventoryReply(unserved=REFUSED), False),
        (pb.InventoryReply(claims_unknown=True), False),
        (None, False),
    ],
    ids=["empty", "refused", "unknown", "none"],
)
def test_what_confirms_a_claim(reply: pb.InventoryReply | None, confirmed: bool) -> None:
    served = Time().served()
    served.told("here", None if reply is None else report_of(reply).unserved)
    assert served.confirmed(CLAIM) is confirmed


def test_the_first_report_of_an_appliance_that_has_read_its_claims_has_each_claim_looked_at() -> None:
    time = Time()
    served = time.served()
    served.told("here", report_of(pb.InventoryReply(claims_unknown=True)).unserved)
    assert not time.looks
    served.told("here", report_of(pb.InventoryReply()).unserved)
    assert time.looks == [(CLAIM.uid, 0.0)]
    assert served.confirmed(CLAIM)


def test_an_appliance_that_refuses_a_claim_again_does_not_get_it_for_five_minutes() -> None:
    """Once may be the fault of a restored status; twice the appliance sees another GPU than the operator."""
    time = Time()
    served = time.served()
    time.refuse(served)
    assert served.avoided(CLAIM) == set(), "its GPU may have room again"
    first = time.now
    served.told("here", {})
    time.now += 60
    time.refuse(served)
    assert served.avoided(CLAIM) == {"here"}
    assert served.avoided(OTHER) == set(), "others may be served there"
    time.now = first + AVOIDED_SECONDS - 1
    assert served.avoided(CLAIM) == {"here"}
    time.now += 1
    assert served.avoided(CLAIM) == set()
    assert time.retries[0] == (CLAIM.uid, AVOIDED_SECONDS), "the allocator is told then"
    served.told("here", {})
    time.refuse(served)
    assert served.avoided(CLAIM) == {"here"}, "that is the second time within five minutes"
    served.forget(CLAIM)
    assert served.avoided(CLAIM) == set()


def test_a_claim_that_loses_its_share_for_another_reason_is_not_avoided() -> None:
    time = Time()
    served = time.served()
    for _ in range(3):
        served.told("here", {CLAIM.lease_id: "its memory is being freed"})
        time.now += REFUSED_SECONDS - 1
        served.displaced(CLAIM)
    assert served.avoided(CLAIM) == set()
