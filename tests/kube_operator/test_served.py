"""Which claims the reports of appliances confirm, without an API server."""

from __future__ import annotations

from dataclasses import replace

import pytest

from remotegpu.api.claims import Allocation, ClaimStatus, GPUClaim, Phase
from remotegpu.rpc import pb
from remotegpu_operator.appliances.inventory import report_of
from remotegpu_operator.claims.served import Served

HERE = Allocation("here", "node", "GPU-1", "GPU", 1 << 30, milli=250)
STORED = {
    "metadata": {"name": "mine", "namespace": "team", "uid": "0-1", "creationTimestamp": "2026-11-30T18:00:00Z"},
    "spec": {"pool": "default", "count": 1, "fraction": "0.25"},
}
CLAIM = replace(GPUClaim.from_object(STORED), status=ClaimStatus(Phase.ALLOCATED, allocations=(HERE,)))
REFUSED = [pb.Unserved(lease_id=CLAIM.lease_id, why="no room")]


class Time:
    def __init__(self) -> None:
        self.now = 1000.0
        self.looks: list[tuple[str, float]] = []

    def served(self) -> Served:
        return Served({CLAIM.uid: CLAIM}, lambda uid, seconds: self.looks.append((uid, seconds)), lambda: self.now)


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
