"""Tests of usage records: sums compared with counting each second, and the conversion of journals to daily sums."""

from __future__ import annotations

import asyncio
import datetime
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.config_maps import ConfigMaps

from remotegpu.api import usage
from remotegpu.api.accounts import history, idlers, rows, waits, within
from remotegpu.api.pools import Price
from remotegpu.api.usage import Amount, Day, Holding, Record, Share
from remotegpu.cli.cluster.usage import by_of, time_of
from remotegpu.cli.exits import CliError
from remotegpu_operator.cluster.kube import ApiError
from remotegpu_operator.usage import journal
from remotegpu_operator.usage.journal import FullError, Journal, Retention

# Noon of a day, in seconds since 1970.
NOON = usage.start_of(datetime.date(2026, 11, 27)) + 43_200
MIDNIGHT = NOON + 43_200


def held(uid: str = "a", start: int = NOON, end: int | None = None, **more: Any) -> Holding:
    others = {"claim": f"claim-{uid}", "shares": (Share("A100", 250, 1000),)} | more
    return Holding(uid=uid, namespace="team", user="", pool="default", start=start, end=end, **others)


HOLDINGS = st.builds(
    lambda number, start, length, unknown, used, milli: replace(
        held(f"u{number}", MIDNIGHT - 30 + start, shares=(Share("A100", milli, 7),)),
        end=MIDNIGHT - 30 + start + length,
        unknown=unknown,
        used=min(used, length),
    ),
    st.integers(0, 10_000),
    st.integers(0, 60),
    st.integers(0, 60),
    st.integers(0, 20),
    st.integers(0, 60),
    st.integers(0, 4000),
)


def record_of(holdings: list[Holding], until: int = 0) -> Record:
    return Record(until, {each.key: each for each in holdings}, {each.key: 0 for each in holdings})


@given(st.lists(HOLDINGS, max_size=6), st.integers(-40, 100), st.integers(0, 100))
def test_sums_are_those_of_counting_each_second(holdings: list[Holding], since: int, length: int) -> None:
    record, first = record_of(holdings), MIDNIGHT + since
    counted: Counter[str] = Counter()
    for each in record.holdings.values():
        (share,) = each.shares
        assert each.end is not None
        for second in range(first, first + length):
            counted["milli"] += share.milli * (each.start <= second < each.end)
            counted["memory"] += share.memory * (each.start <= second < each.end)
            counted["unknown"] += share.milli * (each.end <= second < each.end + each.unknown)
    total = sum(usage.amounts(record, first, first + length).values(), Amount())
    assert (total.milli, total.memory, total.unknown) == (counted["milli"], counted["memory"], counted["unknown"])
    assert total.used <= total.milli


@given(HOLDINGS)
def test_all_seconds_of_use_are_in_the_sum_but_for_rounding(holding: Holding) -> None:
    total = sum(usage.amounts(record_of([holding]), 0, MIDNIGHT * 2).values(), Amount())
    assert 0 <= holding.shares[0].milli * holding.used - total.used <= holding.shares[0].milli


@given(HOLDINGS)
def test_a_line_says_all_of_a_holding(holding: Holding) -> None:
    assert Holding.of_line(holding.line()) == holding


def test_what_is_held_counts_as_far_as_is_known() -> None:
    record = record_of([held()], until=NOON + 100)
    assert sum(usage.amounts(record, 0, NOON * 2).values(), Amount()).milli == 25_000
    # The record is complete only until before the start of the holding, so nothing counts.
    record.until = NOON - 5
    assert sum(usage.amounts(record, 0, NOON * 2).values(), Amount()).milli == 0


def test_sessions_make_seconds_of_use() -> None:
    holding = held(idle_since=NOON).told(True, NOON + 10).told(True, NOON + 20).told(False, NOON + 30)
    assert (holding.used_until(NOON + 99), holding.idle_since) == (20, NOON + 30)
    assert holding.told(True, NOON + 50).ended(NOON + 60).used == 30


@given(st.lists(HOLDINGS, max_size=6), st.lists(st.integers(-60, 120), min_size=2, max_size=5, unique=True))
def test_a_history_is_that_of_counting_each_second(holdings: list[Holding], offsets: list[int]) -> None:
    record, edges = record_of(holdings), [MIDNIGHT + each for each in sorted(offsets)]
    counted = np.zeros(edges[-1] - edges[0], dtype=int)
    for each in record.holdings.values():
        assert each.end is not None
        begin, end = (min(max(time - edges[0], 0), len(counted)) for time in (each.start, each.end))
        counted[begin:end] += each.shares[0].milli
    expected = np.add.reduceat(counted, [each - edges[0] for each in edges[:-1]])
    assert [sum(each.values(), Amount()).milli for each in history(record, edges)] == expected.tolist()


def test_what_ended_before_is_not_there_at_all() -> None:
    record = record_of([held(end=NOON + 60)])
    assert usage.amounts(record, NOON + 60, NOON + 120) == {}
    assert usage.amounts(record, NOON - 60, NOON) == {}


def test_a_day_that_is_kept_as_a_sum_is_once_in_a_history() -> None:
    who = ("team", "", "default", "A100", "")
    day = datetime.date(2026, 11, 27)
    # The record still has a line of a journal that the day's sums already contain.
    record = Record(0, {("a", NOON): held(end=NOON + 60)}, {("a", NOON): 3}, {day: Day(3, {who: Amount(70, 60, 50)})})
    edges = [NOON - 3600, NOON, NOON + 3600, MIDNIGHT + 3600]
    assert history(record, edges) == [{who: Amount(70, 60, 50)}, {}, {}]


@given(st.lists(st.tuples(st.sampled_from("xy"), st.integers(0, 999)), min_size=1, max_size=40))
def test_waiting_times_are_those_of_numpy(drawn: list[tuple[str, int]]) -> None:
    holdings = [
        replace(held(f"u{number}", NOON + seconds, NOON + 2000, created=NOON), pool=pool)
        for number, (pool, seconds) in enumerate(drawn)
    ]
    # No waits: later shares, shares never stored, claims from before the record, and claims without a time.
    others = [
        held("u0", NOON + 1500, created=NOON),
        held("void", NOON + 1, created=NOON, void=True),
        held("old", NOON + 1, created=NOON - 1),
        held("silent", NOON + 1),
    ]
    expected = {}
    for pool in {each.pool for each in holdings}:
        seconds = [each.start - NOON for each in holdings if each.pool == pool]
        expected[pool] = (len(seconds), *np.percentile(seconds, [50, 90], method="inverted_cdf").tolist())
    found = waits(record_of(others + holdings), NOON, NOON + 1000)
    assert {each.pool: (each.claims, each.median_seconds, each.most_seconds) for each in found} == expected


def test_of_other_namespaces_nothing_is_left() -> None:
    days = {datetime.date(2026, 1, 1): Day(1, {(name, "", "", "", ""): Amount(1) for name in ("team", "other")})}
    holdings = [held("a"), replace(held("b"), namespace="other")]
    record = replace(record_of(holdings), days=days, problems=["of all"])
    mine = within(record, {"team"}.__contains__)
    assert "other" not in repr(mine) and mine.problems == []
    assert (list(mine.holdings.values()), mine.days) == ([holdings[0]], {
        datetime.date(2026, 1, 1): Day(1, {("team", "", "", "", ""): Amount(1)})
    })  # fmt: skip


def test_lines_that_cannot_be_read_are_named_and_the_others_count() -> None:
    labels = {usage.USAGE_LABEL: usage.JOURNAL}
    data = {"000000": f"{held('a').line()}\nno line\n{held('b').line()}", "000001": '{"uid": "c"}'}
    record = usage.read([{"metadata": {"name": usage.journal_name(3), "labels": labels}, "data": data}])
    assert sorted(each.uid for each in record.open()) == ["a", "b"]
    assert [each.split(":")[0] for each in record.problems] == [
        f"{usage.journal_name(3)}, 000000",
        f"{usage.journal_name(3)}, 000001",
    ]


async def _load(api: ConfigMaps, claims: int = 30) -> Journal:
    made = Journal(api, "system", Retention(datetime.timedelta(days=claims)))  # type: ignore[arg-type]
    await made.load()
    return made


def test_a_journal_is_as_large_as_is_said_and_all_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "JOURNAL_BYTES", 2000)
    wanted = [held(f"u{number}", NOON + number, NOON + number + 5) for number in range(100)]

    async def scene() -> ConfigMaps:
        api = ConfigMaps()
        made = await _load(api)
        await made.append(wanted[:60])
        for each in wanted[60:80]:
            await made.append([each])
        # Another process creates a journal of its own.
        before = set(api.kept)
        other = await _load(api)
        await other.append(wanted[80:])
        assert before < set(api.kept)
        return api

    api = asyncio.run(scene())
    assert list(api.read().holdings.values()) == wanted
    assert all(sum(map(len, each["data"].values())) <= 2000 for each in api.kept.values())


@settings(max_examples=60, deadline=None)
@given(st.lists(HOLDINGS, min_size=1, max_size=12), st.integers(0, 40))
def test_days_have_the_sums_of_their_journals_also_after_a_failure_at_any_call(
    holdings: list[Holding], fails_at: int
) -> None:
    """The sums are the same before, during and after the conversion to daily sums. Open holdings stay in a journal."""
    open_one = held("open", NOON)

    async def scene() -> tuple[usage.Amounts, usage.Amounts, usage.Amounts, Record]:
        api = ConfigMaps()
        made = await _load(api, claims=0)
        await made.append([open_one, *holdings])
        made._size = journal.JOURNAL_BYTES  # it is full
        await made.append([held("later", MIDNIGHT, MIDNIGHT + 7)])
        before = _all(api.read())
        api.calls, api.fails_at = 0, fails_at
        for _ in range(3):
            try:
                await made.fold({open_one.key: open_one})
            except ApiError:
                continue
        middle = _all(api.read())
        api.fails_at = -1
        again = await _load(api, claims=0)
        await again.append([held("last", MIDNIGHT, MIDNIGHT + 1)])
        for _ in range(4):
            await again.fold({open_one.key: open_one})
        return before, middle, _all(api.read()), api.read()

    before, middle, after, record = asyncio.run(scene())
    assert middle == before
    last = ("team", "", "default", "A100", "")
    assert after == before | {last: before.get(last, Amount()) + Amount(250, 0, 1000, 0)}
    assert [each.uid for each in record.open()] == ["open"]
    # Of ended holdings, only those in the newest journal still have their claim.
    assert {each.uid for each in record.holdings.values() if each.end is not None} <= {"last"}


def _all(record: Record) -> usage.Amounts:
    """Returns the sums over all claims, because daily sums do not distinguish claims."""
    found: usage.Amounts = {}
    for who, amount in usage.amounts(record, 0, MIDNIGHT * 2).items():
        without = (*who[:4], "")
        found[without] = found.get(without, Amount()) + amount
    return {who: amount for who, amount in found.items() if amount != Amount()}


def test_days_too_old_are_deleted() -> None:
    async def scene() -> ConfigMaps:
        api = ConfigMaps()
        for name in ("2020-01-01", datetime.datetime.now(datetime.UTC).date().isoformat()):
            labels = {usage.USAGE_LABEL: usage.DAY}
            body = {"metadata": {"name": usage.day_name(datetime.date.fromisoformat(name)), "labels": labels}}
            await api.create(None, "system", body | {"data": Day(0, {}).data()})
        await (await _load(api)).fold({})
        return api

    (left,) = asyncio.run(scene()).read().days
    assert left == datetime.datetime.now(datetime.UTC).date()


def test_what_somebody_else_wrote_ends_no_operator() -> None:
    """The operator ignores ConfigMaps with names and contents that it would not write."""
    labels = {name: {usage.USAGE_LABEL: name} for name in (usage.JOURNAL, usage.DAY)}
    day = usage.day_name(usage.date_at(NOON))
    # The last name is so long that the name of a next journal would be invalid.
    of_ours = usage.journal_name(0)[:-8]
    odd = ["x", f"{of_ours}5", f"x{usage.journal_name(7)}", of_ours + "9" * (253 - len(of_ours))]

    async def scene() -> Record:
        api = ConfigMaps()
        for name in odd:
            await api.create(None, "system", {"metadata": {"name": name, "labels": labels[usage.JOURNAL]}, "data": {}})
        body = {"metadata": {"name": day, "labels": labels[usage.DAY]}, "data": {"folded": "0", "rows": "[1]"}}
        await api.create(None, "system", body)
        made = await _load(api, claims=0)
        await made.append([held("a", NOON, NOON + 4)])
        made._size = journal.JOURNAL_BYTES  # it is full
        await made.append([held("b", NOON, NOON + 4)])
        await made.fold({})
        return api.read()

    record = asyncio.run(scene())
    assert [each.split(":")[0] for each in record.problems] == odd
    assert set(record.journals.values()) == {1}
    assert [amount.milli for amount in record.days[usage.date_at(NOON)].amounts.values()] == [1000]


@pytest.mark.parametrize("fails_at", range(-1, 14))
def test_what_a_later_release_wrote_is_kept(fails_at: int) -> None:
    """After a rollback, sums and lines that this release cannot read are copied, even if a call fails."""
    rows = '["team", "", "default", "A100", 1, 2, 3, 4, 5]'
    line = '{"uid": "later", "start": {"seconds": 5}, "shares": []}\n'
    kept: list[dict[str, str]] = []

    async def scene() -> Record:
        api = ConfigMaps()
        made = await _load(api, claims=0)
        await made.append([held("a", NOON, NOON + 4)])
        api.kept[usage.journal_name(0)]["data"]["000001"] = line
        labels = {usage.USAGE_LABEL: usage.DAY}
        body = {"metadata": {"name": usage.day_name(usage.date_at(NOON)), "labels": labels}}
        await api.create(None, "system", body | {"data": {"folded": "0", "rows": rows, "more": "x"}})
        made._size = journal.JOURNAL_BYTES  # it is full
        await made.append([held("b", MIDNIGHT, MIDNIGHT + 4)])
        api.calls, api.fails_at = 0, fails_at
        for _ in range(3):
            try:
                await made.fold({})
            except ApiError:
                continue
        kept.extend(
            each["data"]
            for each in api.kept.values()
            if each["metadata"]["labels"][usage.USAGE_LABEL] == usage.UNREADABLE_KIND
        )
        return api.read()

    record = asyncio.run(scene())
    assert len(kept) == 2
    assert kept[0]["000001"] == line
    assert kept[1] == {"folded": "0", "rows": rows, "more": "x"}
    assert record.problems == []
    assert [amount.milli for amount in record.days[usage.date_at(NOON)].amounts.values()] == [1000]


def test_a_journal_with_the_last_number_is_refused_and_lasts() -> None:
    async def scene() -> None:
        api = ConfigMaps()
        name = usage.journal_name(usage.MOST_JOURNAL)
        body = {"metadata": {"name": name, "labels": {usage.USAGE_LABEL: usage.JOURNAL}}, "data": {"000000": "x"}}
        await api.create(None, "system", body)
        made = await _load(api)
        with pytest.raises(FullError, match=f"{name} has the last number that a journal may have"):
            await made.append([held("a")])
        assert list(api.kept) == [name]

    asyncio.run(scene())


# Tests of the sums that the command line prints.


def test_costs_are_those_of_the_first_price_that_fits() -> None:
    prices = {"default": (Price("a100", "2.50"), Price("A", "9"))}
    found: usage.Amounts = {
        ("x", "", "default", "NVIDIA A100", "c"): Amount(3_600_000, 1_800_000, 0, 0),
        ("y", "", "default", "NVIDIA A10", "c"): Amount(1_800_000, 0, 0, 0),
        ("z", "", "other", "NVIDIA A100", "c"): Amount(7_200_000, 0, 0, 0),
    }
    made = {row.by["namespace"]: row for row in rows(found, ["namespace"], prices)}
    assert (made["x"].cost, made["y"].cost, made["z"].cost) == (2.5, 4.5, None)
    assert (made["x"].gpu_seconds, made["x"].used_gpu_seconds) == (3600, 1800)
    # A sum has no cost if a part of it has no price.
    (together,) = rows(found, ["model"], prices)[:1]
    assert [row.cost for row in rows(found, ["model"], prices)] == [4.5, None], together


def test_idle_is_who_has_a_share_and_had_no_session_for_so_long() -> None:
    now = NOON + 7200
    claims = [
        held("new", now - 60, idle_since=now - 60),
        held("unused", NOON, idle_since=NOON),
        held("was used", NOON, idle_since=now - 3600, used=5),
        held("in use", NOON, idle_since=NOON, in_use_since=NOON + 1),
        held("suspended", NOON, idle_since=NOON, shares=(Share("A100", 0, 5),)),
    ]
    assert [(each.claim, each.idle_seconds) for each in idlers(claims, 3600, now)] == [
        ("claim-unused", 7200),
        ("claim-was used", 3600),
    ]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("7d", NOON - 7 * 86_400), ("1d12h", NOON - 129_600), ("90s", NOON - 90), ("2026-11-27T12:00", NOON)],
)
def test_times_are_ago_or_in_utc(text: str, seconds: int) -> None:
    assert time_of(text, NOON) == seconds


@pytest.mark.parametrize("text", ["", "soon", "7 d", "d", "2026-13-01"])
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(CliError, match="is no time"):
        time_of(text, NOON)


def test_rows_are_by_what_is_named() -> None:
    assert by_of("namespace, model") == ["namespace", "model"]
    for text in ("", "team", "namespace;model"):
        with pytest.raises(CliError, match="name one or several of namespace, user, pool, model, claim"):
            by_of(text)
