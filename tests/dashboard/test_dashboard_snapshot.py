"""The page's data, against the objects that it is computed from."""

from __future__ import annotations

import datetime
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from remotegpu.dashboard.state import Scope
from remotegpu_operator.dashboard.snapshot import current

GIB = 1 << 30
NOW = datetime.datetime(2026, 1, 2, 12, tzinfo=datetime.UTC)
ALL = Scope(None, True)
NAMESPACES = ("team-one", "team-two", "team-three")
Object = dict[str, Any]


def pool(*schedules: Object) -> Object:
    gpus = [
        {"uuid": f"GPU-{index}", "model": "Test", "memory": GIB, "shareable": GIB, "healthy": index != 1}
        for index in range(3)
    ]
    appliance = {"name": "a", "node": "node-a", "phase": "Ready", "gpus": gpus}
    return {
        "metadata": {"name": "default", "uid": "p"},
        "spec": {"cordoned": ["node-a"], "schedules": list(schedules)},
        "status": {"phase": "Ready", "appliances": [appliance]},
    }


def claim(namespace: str, name: str, age: int, priority: int = 0, **status: Any) -> Object:
    created = (NOW - datetime.timedelta(seconds=age)).isoformat()
    metadata = {"namespace": namespace, "name": name, "uid": f"{namespace}.{name}", "creationTimestamp": created}
    waits = {"phase": "Pending", "reason": "WaitingForCapacity", "message": f"{namespace} waits"}
    return {"metadata": metadata, "spec": {"fraction": "0.25", "priority": priority}, "status": status or waits}


def running(namespace: str, name: str, gpu: int, phase: str = "Allocated") -> Object:
    share = {"appliance": "a", "node": "node-a", "gpu": f"GPU-{gpu}", "model": "Test", "memory": GIB // 4, "milli": 250}
    return claim(namespace, name, 60, phase=phase, reason="Allocated", allocations=[share])


def objects(*claims: Object, pools: tuple[Object, ...] = ()) -> Object:
    pools = pools or (pool(),)
    return {"gpupools": pools, "gpuclaims": claims, "resourcequotas": [], "priorityclasses": [], "pods": []}


CLAIMS = st.lists(
    st.tuples(
        st.sampled_from(NAMESPACES),
        st.sampled_from(["Pending", "Allocated", "Lost", "Expired"]),
        st.integers(0, 2),
        st.integers(0, 3),
    ),
    max_size=12,
)


def made(drawn: list[tuple[str, str, int, int]]) -> list[Object]:
    return [
        claim(namespace, f"{namespace}-{index}", 100 - number, number)
        if phase == "Pending"
        else running(namespace, f"{namespace}-{index}", number, phase)
        for index, (namespace, phase, number, _) in enumerate(drawn)
    ]


def turn(claim: Object) -> tuple[int, str, str]:
    """docs/waiting.md: the priority, then the age."""
    metadata = claim["metadata"]
    return -claim["spec"]["priority"], metadata["creationTimestamp"], f"{metadata['namespace']}/{metadata['name']}"


@given(CLAIMS)
def test_bars_are_what_claims_have_and_places_are_the_order_of_service(drawn: list[tuple[str, str, int, int]]) -> None:
    claims = made(drawn)
    shown = current(objects(*claims), NOW).claims
    assert shown.keys() == {f"{one['metadata']['namespace']}/{one['metadata']['name']}" for one in claims}
    has = [each for each in claims if each["status"]["phase"] in ("Allocated", "Lost")]
    assert sum(share["memory"] for each in shown.values() for share in each["shares"]) == len(has) * (GIB // 4)
    waiting = sorted((one for one in claims if one["status"]["phase"] == "Pending"), key=turn)
    expected = {one["metadata"]["name"]: place for place, one in enumerate(waiting, 1)}
    assert {each["name"]: each["position"] for each in shown.values() if each["position"]} == expected


@given(CLAIMS, st.sets(st.sampled_from(NAMESPACES)), st.booleans())
def test_what_a_reader_may_not_list_is_not_in_it(
    drawn: list[tuple[str, str, int, int]], allowed: set[str], pools: bool
) -> None:
    whole = current(objects(*made(drawn)), NOW)
    seen = whole.seen_by(Scope(frozenset(allowed), pools))
    assert seen.claims == {key: one for key, one in whole.claims.items() if key.split("/")[0] in allowed}
    text = json.dumps(seen.to_object())
    assert not [namespace for namespace in NAMESPACES if namespace not in allowed and namespace in text]
    assert ("GPU-0" in json.dumps(seen.pools)) == pools


@given(CLAIMS, CLAIMS, st.booleans(), st.booleans())
def test_a_page_that_applies_each_change_shows_what_a_new_one_shows(
    before: list[tuple[str, str, int, int]], after: list[tuple[str, str, int, int]], had: bool, has: bool
) -> None:
    old = current(objects(*made(before)), NOW).seen_by(Scope(None, had))
    new = current(objects(*made(after)), NOW).seen_by(Scope(None, has))
    changes = new.since(old)
    shown = {key: one for key, one in old.claims.items() if key not in changes.get("gone", [])}
    shown |= changes.get("claims", {})
    assert (shown, changes.get("pools", old.pools)) == (new.claims, new.pools)
    assert new.since(new) == {}
    assert not [key for key, one in changes.get("claims", {}).items() if old.claims.get(key) == one]


def test_a_pool_with_its_appliances_and_schedules() -> None:
    night = {"name": "night", "from": "22:00", "to": "06:00"}
    noon = {"name": "noon", "from": "11:00", "to": "13:00"}
    nowhere = {"name": "nowhere", "from": "11:00", "to": "13:00", "timeZone": "Moon/Base"}
    (shown,) = current(objects(pools=(pool(night, noon, nowhere),)), NOW).pools
    (appliance,) = shown["appliances"]
    assert (appliance["cordoned"], [gpu["healthy"] for gpu in appliance["gpus"]]) == (True, [True, False, True])
    schedules = {each["name"]: (each["active"], bool(each["problem"])) for each in shown["schedules"]}
    assert schedules == {"night": (False, False), "noon": (True, False), "nowhere": (False, True)}


def test_a_suspended_claim_is_shown_with_what_stays_on_its_gpu() -> None:
    suspended = running("red", "kept", 0)
    suspended["status"] |= {"phase": "Suspended", "reason": "ByUser"}
    shown = current(objects(suspended), NOW).claims["red/kept"]
    assert (shown["phase"], shown["reason"], shown["position"]) == ("Suspended", "ByUser", 0)
    assert shown["shares"] == [{"appliance": "a", "gpu": "GPU-0", "memory": GIB // 4}]
