"""Packings from beginning to end, while claims, pools and the clock change."""

from __future__ import annotations

import asyncio
import datetime
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from allocation.packing_lab import Lab, lab, until

from remotegpu.api.claims import GPUClaim, Phase, Placement, Reason
from remotegpu.api.conditions import Condition
from remotegpu.api.pools import Amount, AppliancePhase
from remotegpu.api.schedules import FAILED, MOVED, PackMove, PackPhase, PackSpec, PackStatus, Schedule
from remotegpu_operator.allocation import Capacity
from remotegpu_operator.builders import packing as builders
from remotegpu_operator.builders.states import pool_status

STAMP = "2026-11-30T12:00:00Z"


def spread(lab: Lab, *, fixed: int = 500) -> None:
    """`one` on a, `two` on b, and one on c that does not move: two moves empty two GPUs."""
    lab.make("one", "a", 100)
    lab.make("two", "b", 200)
    lab.make("fixed", "c", fixed, movable=False)


def results(lab: Lab) -> dict[str, str]:
    return {each.claim: each.result for each in lab.status.moves}


def test_it_moves_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    found = lab(monkeypatch)
    spread(found)

    async def script() -> None:
        await found.packs("dry-run-1")
        assert (found.status.phase, found.orders) == (PackPhase.PLANNED, [])
        await found.packs("now-1")

    found.runs(script)
    assert results(found) == {"team/one": MOVED, "team/two": MOVED}
    assert {found.place(name) for name in ("one", "two", "fixed")} == {"c"}
    assert len(found.status.recent) == 2
    assert found.status.message == "2 moved; GPUs in use: 1, and 3 before"


def test_a_claim_that_is_gone_before_its_step_ends_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its order, given just before that, ends too."""
    found = lab(monkeypatch, "abcd")
    spread(found)
    found.make("three", "d", 90)
    store = found.packing._store

    async def store_and_drop(uid: str, status: PackStatus) -> None:
        await store(uid, status)
        if any(each.claim == "team/one" and each.result == "Moving" for each in status.moves) and (
            "uid-one" in found.claims
        ):
            found.drop("one")

    monkeypatch.setattr(found.packing, "_store", store_and_drop)

    async def during(claim: GPUClaim) -> None:
        if "uid-two" in found.claims and claim.name != "two":
            found.drop("two")

    found.during = during

    async def script() -> None:
        await found.packs("now-1")
        await found.packs("now-2")

    found.runs(script)
    assert not found.events("NotPacked")
    assert found.orders == ["three"]
    assert FAILED not in results(found).values()
    assert len(found.status.recent) == 1


def test_a_pool_that_is_deleted_and_made_again_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = lab(monkeypatch)
    spread(found)

    async def during(claim: GPUClaim) -> None:
        if found.pool.uid == "uid-p":
            found.pools["p"] = replace(found.pool, uid="uid-new", status=replace(found.pool.status, pack=None))

    found.during = during

    async def script() -> None:
        found.annotate("now-1")
        await until(lambda: found.pool.uid == "uid-new" and found.status.request == "now-1")
        await until(lambda: found.status.phase is PackPhase.DONE)

    found.runs(script)
    assert {found.place(name) for name in ("one", "two", "fixed")} == {"c"}


def test_what_is_not_begun_is_no_failure_and_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another claim takes the target's room after the check and before the order: it is left alone, the rest moves."""
    found = lab(monkeypatch)
    spread(found)
    found.set_spec(moves_per_hour=2)
    order = found.moves.order

    async def late(*given: Any) -> tuple[str, bool]:
        if "uid-late" not in found.claims:
            found.make("late", "c", 450, movable=False)
        return await order(*given)

    monkeypatch.setattr(found.moves, "order", late)

    async def script() -> None:
        await found.packs("now-1")

    found.runs(script)
    assert FAILED not in results(found).values()
    assert not found.events("NotPacked")
    assert not found.status.failed
    assert len(found.status.recent) == len(found.orders) == 1, "the two went together"
    assert any("was not begun: NoRoom" in each.why for each in found.status.stays)


def test_the_rest_of_a_plan_that_empties_nothing_any_more_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """During the first of two moves off `a` a claim that stays comes onto `a`."""
    found = lab(monkeypatch, "ac")
    found.make("one", "a", 100)
    found.make("two", "a", 50)
    found.make("fixed", "c", 500, movable=False)

    async def during(_: GPUClaim) -> None:
        found.make("late", "a", 10, movable=False)

    found.during = during

    async def script() -> None:
        await found.packs("now-1")

    found.runs(script)
    assert found.orders == ["one"]
    assert found.place("two") == "a"


def test_a_claim_whose_move_failed_leaves_the_next_packings_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    found = lab(monkeypatch, "abc", PackSpec(every=900, moves_per_hour=1, leave_alone=0))
    spread(found)
    found.refuse = lambda claim: "ModuleAddressesDiffer" if claim.name == "one" else ""

    async def script() -> None:
        await found.packs()
        assert results(found) == {"team/one": FAILED}
        found.clock.forward(hours=1, seconds=1)
        await found.packs()
        assert results(found) == {"team/two": MOVED}
        assert [each.uid for each in found.status.failed] == ["uid-one"]
        found.clock.forward(days=1)
        await found.packs()
        assert found.orders == ["one", "two", "one"]
        found.clock.forward(hours=1, seconds=1)
        # A request tries it at once; the plan alone changes nothing.
        await found.packs("dry-run-1")
        assert [each.claim for each in found.status.moves] == ["team/one"]
        assert found.status.failed
        found.refuse = lambda _: ""
        await found.packs("now-1")

    found.runs(script)
    assert found.place("one") == "c"
    assert not found.status.failed


def test_a_scheduled_packing_ends_with_its_hours_also_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    hours = Schedule("pack", datetime.time(11), datetime.time(13))
    found = lab(monkeypatch, "abc", PackSpec(hours=hours, leave_alone=0))
    spread(found)

    async def during(_: GPUClaim) -> None:
        found.clock.forward(hours=2)

    found.during = during
    found.runs(found.packs)
    assert found.orders == ["one"]
    # Another operator finds it in its midst, after the hours.
    begun = replace(found.status, phase=PackPhase.MOVING)
    assert begun.scheduled
    found.pools["p"] = replace(found.pool, status=replace(found.pool.status, pack=begun))
    found.packing = found.another()
    found.runs(found.packs)
    assert found.orders == ["one"]
    assert found.status.phase is PackPhase.DONE


def test_a_refused_order_leaves_nothing_booked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first attempt could not write that the claim moves. Then the target drains."""
    found = lab(monkeypatch)
    spread(found)
    claim = found.claims["uid-one"]

    async def script() -> None:
        to = tuple(replace(each, appliance="c", gpu="gpu-c") for each in claim.status.allocations)
        monkeypatch.setattr(found.moves, "_look", lambda _: None)
        order = asyncio.create_task(found.moves.order(claim.uid, "a", to, "as the test says"))
        await asyncio.sleep(0)
        assert found.moves.next(claim, found.appliances, STAMP).move is not None
        assert found.allocator.held(claim.uid) != claim.status.held
        closed = replace(found.appliances["c"], phase=AppliancePhase.DRAINING)
        found.allocator.set_pool("p", (found.appliances | {"c": closed}).values())
        assert found.moves.next(claim, found.appliances, STAMP) == claim.status
        assert await order == ("c is Draining", True)
        assert found.allocator.held(claim.uid) == claim.status.held

    asyncio.run(script())


def test_a_claim_made_anew_is_not_the_one_that_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator finds a move that another one began, and a claim of that name that was made after it."""
    found = lab(monkeypatch)
    found.make("one", "c", 100, movable=False)
    one = found.claims["uid-one"]
    for created, expected in (("2026-11-30T11:00:00Z", MOVED), ("2026-11-30T12:30:00Z", "")):
        move = PackMove("team/one", "a", "c", "Moving")
        begun = PackStatus("now-1", PackPhase.MOVING, moves=(move,), recent=(STAMP,))
        found.pools["p"] = replace(found.pool, status=replace(found.pool.status, pack=begun), pack_request="now-1")
        found.packing = found.another()
        found.put(replace(one, created=created))
        found.runs(found.packs)
        assert results(found).get("team/one", "") == expected


def test_packed_claims_do_not_come_beside_one_that_is_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    found = lab(monkeypatch)
    found.make("one", "a", 100)
    found.make("alone", "b", 500)
    found.make("fixed", "c", 50, movable=False)
    found.change("alone", placement=Placement.SPREAD)
    found.runs(lambda: found.packs("now-1"))
    assert found.place("one") == "c"


@pytest.mark.parametrize("ends", ["schedule", "request"])
def test_a_packing_that_is_not_wanted_any_more_ends(monkeypatch: pytest.MonkeyPatch, ends: str) -> None:
    found = lab(monkeypatch)
    spread(found)

    async def during(_: GPUClaim) -> None:
        found.set_spec(every=None)
        found.annotate("")

    found.during = during

    async def script() -> None:
        if ends == "schedule":
            found.set_spec(every=900)
            await found.packs()
        else:
            found.annotate("now-1")
            await until(lambda: found.status.phase is PackPhase.MOVING)
            await until(lambda: found.status.phase is PackPhase.DONE)

    found.runs(script)
    assert results(found) == {"team/one": MOVED}
    assert found.status.message == "1 moved, and the rest is not wanted any more; GPUs in use: 2, and 3 before"


def test_fewer_moves_an_hour_hold_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found = lab(monkeypatch)
    spread(found)

    async def during(_: GPUClaim) -> None:
        found.set_spec(moves_per_hour=1)

    found.during = during
    found.runs(lambda: found.packs("now-1"))
    assert found.orders == ["one"]


def test_a_claim_that_another_move_carries_away_has_not_moved_where_the_plan_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`spec.appliance` names `b` when the order is given: no result says that the claim is on `c`."""
    found = lab(monkeypatch, "abc")
    found.make("one", "a", 100)
    found.make("fixed", "c", 500, movable=False)
    found.make("stays", "b", 50, movable=False)
    order = found.moves.order

    async def named(*given: Any) -> tuple[str, bool]:
        found.change("one", appliance="b")
        return await order(*given)

    monkeypatch.setattr(found.moves, "order", named)
    found.runs(lambda: found.packs("now-1"))
    assert MOVED not in results(found).values()

    async def script() -> None:
        found.moves._look("uid-one")
        await until(lambda: found.place("one") == "b")

    found.runs(script)


def test_a_suspended_claim_finds_its_gpu_as_it_left_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = lab(monkeypatch)
    found.make("one", "a", 100)
    found.make("trains", "b", 20)
    found.make("big", "c", 550)
    trains = found.claims["uid-trains"]
    status = replace(trains.status, phase=Phase.SUSPENDED, reason=Reason.BY_SCHEDULE)
    found.put(replace(trains, status=status))
    found.runs(lambda: found.packs("now-1"))
    assert (found.place("one"), found.place("big")) == ("c", "c")


def test_a_claim_moves_once_in_a_packing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where its new GPU has no other claim any more, and another one has room now."""
    found = lab(monkeypatch)
    found.make("one", "a", 100)
    found.make("two", "b", 600)
    found.make("fixed", "c", 950, movable=False)

    async def during(_: GPUClaim) -> None:
        if "uid-two" in found.claims:
            found.drop("two")
            found.drop("fixed")
            found.make("fixed", "c", 300, movable=False)

    found.during = during
    found.runs(lambda: found.packs("now-1"))
    assert found.orders == ["one"]
    found.runs(lambda: found.packs("now-2"))
    assert found.place("one") == "c"


@pytest.mark.parametrize("ahead", [datetime.timedelta(days=1), datetime.timedelta(days=365)])
def test_a_clock_that_was_ahead_stops_nothing(monkeypatch: pytest.MonkeyPatch, ahead: datetime.timedelta) -> None:
    found = lab(monkeypatch, "abc", PackSpec(every=900, moves_per_hour=2, leave_alone=600))
    spread(found)
    later = (found.clock.now + ahead).strftime("%Y-%m-%dT%H:%M:%SZ")
    before = PackStatus("now-0", started=later, recent=(later, later))
    found.pools["p"] = replace(found.pool, status=replace(found.pool.status, pack=before))
    for claim in list(found.claims.values()):
        found.put(replace(claim, status=replace(claim.status, share_since=later)))
    found.runs(found.packs)
    assert {found.place(name) for name in ("one", "two", "fixed")} == {"c"}


# The status fits the CRD.

SCHEMA = yaml.safe_load(Path("crds/gpupools.yaml").read_text())


def check(value: Any, schema: dict[str, Any], path: str = "pack") -> None:
    """Asserts the limits of a schema: the API server refuses the whole status of a pool for one that is too long."""
    if isinstance(value, str):
        assert len(value) <= schema.get("maxLength", len(value)), path
        assert value in schema.get("enum", [value]), path
    elif isinstance(value, list):
        assert len(value) <= schema.get("maxItems", len(value)), path
        for each in value:
            check(each, schema["items"], path)
    elif isinstance(value, dict):
        for name, each in value.items():
            check(each, schema["properties"][name], f"{path}.{name}")


def fits(status: PackStatus) -> PackStatus:
    schema = SCHEMA["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]["pack"]
    check(status.to_object(), schema)
    return status


def test_no_status_is_more_than_the_api_server_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The most moves in an hour, each with the longest names and reasons, an hour after the other."""
    found = lab(monkeypatch)
    found.set_spec(moves_per_hour=240)
    long = "x" * 5000
    moves = tuple(PackMove(f"{'n' * 63}/{'c' * 253}", "s" * 253, "t" * 253) for _ in range(240))
    stays = {f"{'n' * 63}/{number}": f"{number} {long}" for number in range(300)}
    status = builders.planned(PackStatus(), "now-1", (9, 8), moves, stays, STAMP, only=False, scheduled=False)
    fits(status)
    now, begun = found.clock.now, 0
    while left := builders.left(found.pool, status, now):
        more = moves[: left - 1]
        recent = builders.within_an_hour(status.recent, now)
        status = fits(builders.moving(replace(status, recent=recent), moves[0], more, now.isoformat()))
        status = fits(builders.ended(status, "u" * 36, long, now.isoformat()))
        now, begun = now + datetime.timedelta(seconds=20), begun + 1
    assert begun == 240
    fits(builders.done(status, 8, stays, wanted=False))


def conditions(found: Lab) -> dict[str, Condition]:
    nothing = Amount(0, 0)
    capacity = Capacity(nothing, nothing, nothing, "", ())
    status = pool_status(found.pool, capacity, "", STAMP, pack=found.pool.status.pack)
    found.pools["p"] = replace(found.pool, status=status)
    return {each.type: each for each in status.conditions}


def test_the_condition_of_a_schedule_that_is_corrected_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Schedule("pack", datetime.time(1), datetime.time(2), time_zone="Nowhere/There")
    found = lab(monkeypatch, "a", PackSpec(hours=wrong))
    assert conditions(found)["Packed"].reason == "NoSuchTimeZone"
    found.set_spec(hours=None)
    assert "Packed" not in conditions(found)


@pytest.mark.parametrize(
    "text", ["yes", "plan", "false", "dryrun-1", "Dry-run-1", "now", "now-", "now-1 ", "now-" + "1" * 300]
)
def test_another_text_is_no_request_and_is_named(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    found = lab(monkeypatch)
    spread(found)
    found.annotate(text)
    assert not builders.asked(found.pool, PackStatus())
    packed = conditions(found)["Packed"]
    assert (packed.status, packed.reason) == ("False", "BadRequest")
    assert text[:80] in packed.message
    found.annotate("now-1")
    assert builders.asked(found.pool, PackStatus())
    assert "Packed" not in conditions(found)
