"""Usage as the page gets it: sums against the record, and who gets which of a real API server's roles."""

from __future__ import annotations

from typing import Any

import pytest
from support.dashboard import Page, may

from remotegpu.api.pools import Price
from remotegpu.api.usage import Holding, Record, Share
from remotegpu_operator.dashboard.usage import BY, RANGES, usage_of, usage_of_claim

NOW = 1_795_000_000
PRICES = {"default": (Price("A100", "3600"),)}
Object = dict[str, Any]


def record_of(holdings: list[Holding]) -> Record:
    return Record(NOW, {each.key: each for each in holdings}, {each.key: 0 for each in holdings})


def held(name: str, start: int, end: int | None, **more: Any) -> Holding:
    share = (Share("A100", 500, 1 << 30),)
    return Holding(name, "team", name, "its-user", "default", share, NOW + start, end and NOW + end, **more)


@pytest.mark.parametrize("length", RANGES)
def test_bars_and_rows_have_all_that_was_held_in_the_time(length: str) -> None:
    seconds, step = RANGES[length]
    holdings = [held(f"c{number}", -number * 7919 - 600, -number * 7000 or None) for number in range(300)]
    found = usage_of(record_of(holdings), length, "claim", PRICES, NOW)
    expected = sum(max(0, min(NOW, each.end or NOW) - max(NOW - seconds, each.start)) for each in holdings) / 2
    assert found["total"]["gpu_seconds"] == found["total"]["cost"] == expected
    assert sum(bar["held"] for bar in found["bars"]) == pytest.approx(expected)
    assert len(found["bars"]) <= 32 and {bar["start"] % step for bar in found["bars"][1:]} == {0}
    rows = sum(each["gpu_seconds"] for each in found["rows"])
    assert rows == pytest.approx(expected) if not found["more"] else rows < expected
    assert len(found["rows"]) == min(100, len({each.claim for each in holdings if (each.end or NOW) > NOW - seconds}))


def test_nothing_recorded_is_nothing_used() -> None:
    found = usage_of(Record(), "day", "pool", {}, NOW)
    assert (found["total"]["gpu_seconds"], found["rows"], found["waits"], found["idle"]) == (0, [], [], [])


def test_an_operator_that_records_nothing_any_more_is_told() -> None:
    record = record_of([held("a", -500, None)])
    assert usage_of(record, "day", "pool", {}, NOW)["known"] == NOW
    assert usage_of(record, "day", "pool", {}, NOW + 100)["known"] == NOW


def test_a_claims_last_hour() -> None:
    old, new = held("a", -5400, -1800, used=3600), held("a", -600, None, idle_since=NOW - 60)
    record = record_of([old, new, held("b", -5400, None)])
    found = usage_of_claim(record, "team", "a", PRICES, NOW)
    assert (found["gpu_seconds"], found["used_gpu_seconds"], found["cost"]) == (1200, 900, 1200)
    assert found["idle_seconds"] == 60
    running = record_of([held("a", -600, None, in_use_since=NOW - 10)])
    assert usage_of_claim(running, "team", "a", PRICES, NOW)["idle_seconds"] is None


def asked(page: Page, token: str, by: str) -> Object:
    response = page.get(f"/api/usage?range=week&by={by}", token)
    assert response.status == 200, response.data
    found: Object = response.json()
    return found


# By hand, of what `conftest.used` has: seconds of a whole GPU held, and used of that.
TRAIN = (450.0, 150.0)
SECRET = (600.0, 450.0)
PAST = (100.0, 0.0)


def test_a_reader_of_everything_sees_the_usage_of_all(page: Page, everything: str) -> None:
    found = asked(page, everything, "claim")
    rows = {each["name"]: (each["gpu_seconds"], each["used_gpu_seconds"]) for each in found["rows"]}
    assert rows == {"team-a/train": TRAIN, "team-b/secret-project": SECRET, "team-gone/past": PAST}
    assert all(each["cost"] == each["gpu_seconds"] for each in found["rows"])
    assert found["total"]["gpu_seconds"] == 1150
    assert found["waits"] == [{"pool": "default", "claims": 3, "median_seconds": 30, "most_seconds": 90}]
    assert [each["claim"] for each in found["idle"]] == ["train"]
    for by in BY:
        assert asked(page, everything, by)["total"] == found["total"]
    assert "its-user" not in str(found)


def test_who_may_list_one_namespaces_claims_sees_no_others_usage(page: Page, of_team_a: str) -> None:
    for by in BY:
        found = asked(page, of_team_a, by)
        assert (found["total"]["gpu_seconds"], found["total"]["used_gpu_seconds"]) == TRAIN
        # Prices are the pool's, which they may not read.
        assert found["total"]["cost"] is None
        assert [each["claims"] for each in found["waits"]] == [1]
        assert not [each for each in ("team-b", "secret-project", "team-gone") if each in str(found)]
    hidden = page.get("/api/claims/team-b/secret-project/usage", of_team_a)
    assert hidden.status == 404


def test_a_namespace_whose_claims_have_gone_has_used_something(page: Page) -> None:
    token = page.account("heir", "team-gone", may("list", "gpuclaims"))
    assert page.get("/api/snapshot", token).status == 403
    assert [each["name"] for each in asked(page, token, "claim")["rows"]] == ["team-gone/past"]


def test_who_may_list_nothing_gets_no_usage(page: Page) -> None:
    token = page.account("visitor", "elsewhere", may("list", "gpuclaims"))
    assert page.get("/api/usage?range=week&by=claim", token).status == 403


def test_a_claims_own_usage(page: Page, of_team_a: str) -> None:
    found = page.get("/api/claims/team-a/train/usage", of_team_a).json()
    assert (found["gpu_seconds"], found["used_gpu_seconds"]) == TRAIN
    assert found["idle_seconds"] >= 1200


@pytest.mark.parametrize("query", ["", "?range=year&by=pool", "?range=day&by=user"])
def test_another_question_is_told_what_can_be_asked(page: Page, everything: str, query: str) -> None:
    response = page.get(f"/api/usage{query}", everything)
    assert response.status == 400
    assert "range is one of hour, day, week, month, by one of" in response.json()["error"]
