"""The answers of `why` for a pool, against the allocator itself: the claim starts without all claims that the answer
names, does not start if one of them stays, and no share larger than the offered one would start now.
"""

from __future__ import annotations

import copy
import datetime
from typing import Any

import pytest
from allocation import naive_why
from hypothesis import given, settings
from hypothesis import strategies as st

from remotegpu.api.quantities import parse_fraction
from remotegpu.api.waiting import Answer
from remotegpu.cli.cluster.why import lines
from remotegpu_operator.allocation import Allocator, Placed, request_of
from remotegpu_operator.claims.why import State, explain, lengths_of, remaining

GIB = 1 << 30
NOW = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
Object = dict[str, Any]


def stamp(seconds_ago: int) -> str:
    return (NOW - datetime.timedelta(seconds=seconds_ago)).isoformat()


def pool(gpus: int) -> Object:
    listed = [
        {"uuid": f"GPU-{index}", "model": "Test", "memory": GIB, "shareable": GIB, "healthy": True}
        for index in range(gpus)
    ]
    appliance = {"name": "a", "node": "a", "phase": "Ready", "gpus": listed}
    return {
        "metadata": {"name": "default", "uid": "p"},
        "spec": {},
        "status": {"phase": "Ready", "appliances": [appliance]},
    }


def claim(name: str, milli: int, age: int, **status: Any) -> Object:
    metadata = {"namespace": "team", "name": name, "uid": name, "creationTimestamp": stamp(age)}
    waits = {"phase": "Pending", "reason": "WaitingForCapacity"}
    return {"metadata": metadata, "spec": {"fraction": f"0.{milli:03}"}, "status": status or waits}


def objects(gpus: int, running: list[tuple[int, int]], waiting: list[int], pods: tuple[Object, ...] = ()) -> Object:
    """Running claims, each with its fraction of a GPU and its age, as an allocator placed them; and waiting claims."""
    allocator = Allocator()
    found: Object = {
        "gpupools": [pool(gpus)],
        "gpuclaims": [],
        "resourcequotas": [],
        "priorityclasses": [],
        "pods": pods,
    }
    state = State.of(found)
    allocator.set_pool("default", state.pools[0].status.appliances)
    made = [claim(f"r{index}", milli, age) for index, (milli, age) in enumerate(running)]
    for asked in State.of(found | {"gpuclaims": made}).claims:
        allocator.submit(request_of(asked))
    decisions = allocator.settle()
    placed = {one.request.uid: one.allocations for one in decisions if isinstance(one, Placed)}
    for each, (_, age) in zip(made, running, strict=True):
        if (allocations := placed.get(each["metadata"]["uid"])) is not None:
            ready = {"type": "Ready", "status": "True", "reason": "Allocated", "lastTransitionTime": stamp(age)}
            each["status"] = {"phase": "Allocated", "reason": "Allocated", "conditions": [ready],
                              "allocations": [one.to_object() for one in allocations]}  # fmt: skip
    found["gpuclaims"] = [each for each in made if each["metadata"]["uid"] in placed]
    found["gpuclaims"] += [claim(f"w{index}", milli, 10 - index) for index, milli in enumerate(waiting)]
    return found


def answer_for(found: Object, name: str = "w0") -> Answer:
    return explain("team", name, found, NOW)


def starts(found: Object, name: str, without: set[str] = frozenset()) -> bool:  # type: ignore[assignment]
    """The oracle: an allocator that never saw some claims."""
    state = State.of(found)
    allocator = Allocator()
    allocator.set_pool("default", state.pools[0].status.appliances)
    for each in state.claims:
        if each.key in without:
            continue
        if each.status.allocations:
            allocator.hold(request_of(each), each.status.held)
        else:
            allocator.submit(request_of(each))
    allocator.settle()
    return allocator.held(name) is not None


POOLS = st.tuples(
    st.integers(1, 3),
    st.lists(st.tuples(st.integers(100, 999), st.integers(100, 9000)), max_size=6),
    st.lists(st.integers(100, 999), min_size=1, max_size=3),
)


@given(POOLS)
@settings(max_examples=150, deadline=None)
def test_those_that_have_to_end_are_enough_and_all_needed(drawn: tuple[int, list[tuple[int, int]], list[int]]) -> None:
    found = objects(*drawn)
    answer = answer_for(found)
    holders = {each.claim for each in answer.holders}
    assert answer.position == 1
    if starts(found, "w0"):
        assert (holders, answer.starts_in_seconds) == (set(), 0)
        return
    assert answer.starts_in_seconds is not None, "every share of this test fits an empty GPU"
    assert starts(found, "w0", holders)
    for one in holders:
        assert not starts(found, "w0", holders - {one})
    assert answer.starts_in_seconds >= max(each.ends_in_seconds for each in answer.holders)


@given(POOLS)
@settings(max_examples=100, deadline=None)
def test_the_smaller_share_starts_and_a_larger_one_does_not(
    drawn: tuple[int, list[tuple[int, int]], list[int]],
) -> None:
    found = objects(*drawn)
    answer = answer_for(found)
    asked = int(1000 * float(found["gpuclaims"][-len(drawn[2])]["spec"]["fraction"]))
    offered = int(1000 * float(answer.smaller[0])) if answer.smaller else 0
    for milli, expected in ((offered, True), (offered + 1, False)):
        if 0 < milli < asked:
            others = [each for each in found["gpuclaims"] if each["metadata"]["name"] != "w0"]
            # Behind all waiting claims: it is created now.
            tried = found | {"gpuclaims": [*others, claim("new", milli, 0)]}
            assert starts(tried, "new") is expected, (milli, offered)


@st.composite
def clusters(draw: st.DrawFn) -> Object:
    """With namespaces, one of which has a quota, priorities, and claims that gave way to others."""
    waiting = draw(st.lists(st.sampled_from([100, 250, 500, 999]), min_size=1, max_size=6))
    running = st.lists(st.tuples(st.sampled_from([100, 250, 400, 999]), st.integers(100, 9000)), max_size=10)
    found = objects(draw(st.integers(1, 5)), draw(running), waiting)
    for each in found["gpuclaims"]:
        each["metadata"]["namespace"] = draw(st.sampled_from(["team", "team", "blue"]))
        each["spec"]["priority"] = draw(st.sampled_from([0, 0, 0, 5]))
        if each["status"]["phase"] == "Allocated" and draw(st.integers(0, 2)) == 0:
            each["status"] |= {"phase": "Suspended", "reason": "ForPriority"}
    quota = {"requests.remotegpu/milli": str(draw(st.sampled_from([500, 1500, 9000])))}
    found["resourcequotas"] = [{"metadata": {"namespace": "blue", "name": "gpus"}, "spec": {"hard": quota}}]
    return found


@given(clusters())
@settings(max_examples=100, deadline=None)
def test_it_says_what_an_allocator_made_anew_for_each_question_says(found: Object) -> None:
    before = copy.deepcopy(found)
    for each in found["gpuclaims"]:
        name, namespace = each["metadata"]["name"], each["metadata"]["namespace"]
        if each["status"]["phase"] == "Pending":
            answer = explain(namespace, name, found, NOW)
            told = [holder.claim for holder in answer.holders], answer.starts_in_seconds
            assert told == naive_why.ends(found, name, NOW)
            offered = parse_fraction(answer.smaller[0]).milli_per_gpu if answer.smaller else 0
            assert not offered or naive_why.starts(found, name, offered, NOW)
            asked = parse_fraction(each["spec"]["fraction"]).milli_per_gpu
            assert offered + 1 == asked or not naive_why.starts(found, name, offered + 1, NOW)
    assert found == before


def test_claims_are_entered_once_and_one_at_a_time_after_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """One question does not enter every claim again: with a thousand claims that took seconds."""
    found = objects(20, [(250, 60 + index) for index in range(80)], [500] * 40)
    entered, told = [], []
    hold, sentence = Allocator.hold, Allocator._sentence
    monkeypatch.setattr(Allocator, "hold", lambda *given: entered.append(given[1].uid) or hold(*given))  # type: ignore[func-returns-value]
    monkeypatch.setattr(Allocator, "_sentence", lambda *given: told.append(given[1]) or sentence(*given))  # type: ignore[func-returns-value]
    answer = answer_for(found, "w39")
    assert answer.position == 40 and answer.starts_in_seconds is not None
    # Each of the 32 of which is asked whether they have to end is entered once more.
    assert len(entered) <= 80 + 32
    assert len(told) == 1


def test_nothing_is_decided_beyond_the_one_that_was_looked_for() -> None:
    made = State.of(objects(3, [], [500, 500, 500])).allocator(NOW)
    assert next(made.placing()).request.uid == "w0"
    assert [each.uid for each in made.waiting()] == ["w1", "w2"]


def test_those_before_it_end_as_well() -> None:
    """One GPU, held for an hour, and two that wait for all of it: the second waits for the end of the first."""
    found = objects(1, [(999, 3600)], [999, 999])
    first, second = answer_for(found, "w0"), answer_for(found, "w1")
    assert (first.starts_in_seconds, second.starts_in_seconds) == (3600, 7200)
    assert (second.position, second.ahead) == (2, ("team/w0",))


def test_far_back_in_a_queue_a_person_reads_five_claims() -> None:
    found = objects(8, [(999, 60 + index) for index in range(8)], [999] * 8)
    answer = answer_for(found, "w7")
    assert len(answer.holders) == 8
    shown = [line for line in lines(answer) if line.startswith("  ends")]
    assert (len(shown), shown[-1]) == (6, "  ends     and 3 more claims")


def test_what_has_ended_says_how_long_claims_last() -> None:
    pods = tuple(ended(seconds) for seconds in (600, 1200, 4200, 5400))
    found = objects(1, [(999, 3600)], [999], pods)
    assert answer_for(found).starts_in_seconds == 1200, "the median of 600 and 1800 seconds more"


def ended(seconds: int, pool: str = "default") -> Object:
    terminated = {"finishedAt": stamp(0), "exitCode": 0}
    status = {"startTime": stamp(seconds), "containerStatuses": [{"state": {"terminated": terminated}}]}
    return {"metadata": {"annotations": {"remotegpu.io/pool": pool}}, "status": status}


def test_only_pods_of_the_pool_that_have_ended_count() -> None:
    running = {"metadata": {}, "status": {"startTime": stamp(5), "containerStatuses": [{"state": {"running": {}}}]}}
    assert lengths_of([ended(60), ended(70, "other"), running], "default") == [60]


@pytest.mark.parametrize(
    ("held", "lengths", "expected"), [(100, [], 100), (100, [50, 80], 100), (100, [150, 50], 50), (0, [10, 30], 20)]
)
def test_how_much_longer_a_claim_lasts(held: int, lengths: list[int], expected: int) -> None:
    assert remaining(held, lengths) == expected


def test_a_share_is_read_as_it_is_written() -> None:
    """The offered share is text that -p and `remotegpu/fraction` accept."""
    (offered,) = answer_for(objects(1, [(700, 60)], [999])).smaller
    assert parse_fraction(offered).milli_per_gpu == 300
