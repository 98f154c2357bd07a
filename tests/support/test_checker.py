"""The checker of the e2e tests finds each kind of disagreement."""

from typing import Any

from support.checker import Held, Truth, disagreements, over_capacity

UID = "0a1b2c3d-0000-4000-8000-000000000001"
GPU = "GPU-1"


def truth(*held: Held, leased: int | None = None) -> Truth:
    total = sum(each.memory for each in held) if leased is None else leased
    return Truth("a", {GPU: 100}, {GPU: total}, held, {}, draining=False)


def held(memory: int = 60, uid: str = UID) -> Held:
    return Held("a", GPU, uid.replace("-", ""), memory)


def claim(phase: str = "Allocated", pod_uid: str | None = None) -> dict[str, Any]:
    place = {"appliance": "a", "node": "n", "gpu": GPU, "memory": 60, "milli": 600}
    spec = {"pod": {"name": "p", "uid": pod_uid}} if pod_uid else {}
    return {
        "metadata": {"namespace": "ns", "name": "c", "uid": UID},
        "spec": spec,
        "status": {"phase": phase, "allocations": [place] if phase == "Allocated" else []},
    }


def pod(uid: str, phase: str = "Running", **metadata: str) -> dict[str, Any]:
    return {"metadata": {"uid": uid, **metadata}, "spec": {}, "status": {"phase": phase}}


def test_what_is_well_is_not_reported() -> None:
    assert over_capacity([truth(held())]) == []
    assert disagreements([truth(held())], [claim(pod_uid="p1")], [pod("p1")]) == []


def test_a_gpu_given_away_twice() -> None:
    other = held(uid=UID.replace("1", "2"))
    assert "120 of 100 bytes" in over_capacity([truth(held(), other)])[0]


def test_a_sum_that_the_appliance_does_not_believe_itself() -> None:
    assert "add up to 60, it says 50" in over_capacity([truth(held(), leased=50)])[0]


def test_a_lease_without_a_claim_and_a_claim_without_a_lease() -> None:
    assert "has no allocated claim" in disagreements([truth(held())], [], [])[0]
    assert "has no allocated claim" in disagreements([truth(held())], [claim("Pending")], [])[0]
    assert "does not know it" in disagreements([truth()], [claim()], [])[0]
    assert "does not answer" in disagreements([], [claim()], [])[0]


def test_another_memory_than_the_claims() -> None:
    assert len(disagreements([truth(held(50))], [claim()], [])) == 2


def test_a_claim_whose_pod_needs_it_no_longer() -> None:
    for pods in ([], [pod("p1", "Succeeded")], [pod("p1", deletionTimestamp="2026-01-01T00:00:00Z")]):
        assert any("its pod has ended" in each for each in disagreements([truth(held())], [claim(pod_uid="p1")], pods))
    bound = pod("p1", deletionTimestamp="2026-01-01T00:00:00Z") | {"spec": {"nodeName": "n"}}
    assert disagreements([truth(held())], [claim(pod_uid="p1")], [bound]) == []
