"""Tests of the stores of objects without an API server: what events, lists and answers change, in which order."""

from __future__ import annotations

import asyncio
import copy
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from remotegpu_operator.claims.stores import Stores
from remotegpu_operator.cluster import sweep
from remotegpu_operator.cluster.kube import PODS, Api, Object, Resource
from remotegpu_operator.cluster.store import Store
from remotegpu_operator.handlers.startup import connect
from remotegpu_operator.process import Process


def thing(name: str, uid: str, version: int, **more: Any) -> Object:
    return {"metadata": {"name": name, "uid": uid, "resourceVersion": str(version)}, **more}


class Told:
    """A store, and the changes that it told: the uids and versions before and after each."""

    def __init__(self) -> None:
        self.changes: list[tuple[str | None, str | None]] = []
        self.store = Store(PODS, lambda before, now: self.changes.append((_state(before), _state(now))))

    def event(self, kind: str | None, *what: Any) -> None:
        self.store.report({"type": kind, "object": thing(*what)})


def _state(thing: Object | None) -> str | None:
    return None if thing is None else f"{thing['metadata']['uid']}@{thing['metadata']['resourceVersion']}"


@pytest.mark.parametrize("swept_at", [30, 20, None], ids=["list after both", "list before the new one", "no sweep"])
def test_a_class_made_anew_in_a_gap_of_the_watch_has_its_new_value(swept_at: int | None) -> None:
    """After the gap kopf reports the new class, and only later the sweep finds that the old one is gone."""
    values: dict[str, int | None] = {}
    process = SimpleNamespace(stores=Stores(), claims=SimpleNamespace(class_changed=values.__setitem__))
    connect(cast(Process, process))
    classes = process.stores.classes
    classes.report({"type": "ADDED", "object": thing("high", "a", 10, value=50)})
    classes.report({"type": None, "object": thing("high", "b", 25, value=100)})
    if swept_at is not None:
        classes.prune({"b"} if swept_at == 30 else set(), str(swept_at))
    assert values == {"high": 100}
    classes.report({"type": "DELETED", "object": thing("high", "a", 21, value=50)})
    assert values == {"high": 100}
    classes.report({"type": "DELETED", "object": thing("high", "b", 40, value=100)})
    assert values == {"high": None}


def test_an_object_made_anew_comes_after_the_end_of_the_old_one() -> None:
    told = Told()
    told.event("ADDED", "p", "a", 10)
    told.event(None, "p", "b", 25)
    assert told.changes == [(None, "a@10"), ("a@10", None), (None, "b@25")]
    assert _state(told.store.named("", "p")) == "b@25"
    for late in ("MODIFIED", "DELETED"):
        told.event(late, "p", "a", 20)
    assert len(told.changes) == 3
    assert _state(told.store.named("", "p")) == "b@25"


def test_a_state_of_an_object_whose_successor_is_known_is_ignored() -> None:
    told = Told()
    told.event("ADDED", "p", "b", 25)
    told.event("MODIFIED", "p", "a", 20)
    assert told.changes == [(None, "b@25")]


def test_an_object_that_gets_its_label_back_is_seen_again() -> None:
    told = Told()
    told.event("ADDED", "p", "a", 10)
    told.event("DELETED", "p", "a", 20)  # The label is removed.
    told.store.store(thing("p", "a", 15))  # The answer to a write before that.
    assert told.changes[1:] == [("a@10", None)]
    told.event("ADDED", "p", "a", 30)
    told.event("DELETED", "p", "a", 20)  # A report that comes late.
    assert told.changes[2:] == [(None, "a@30")]


def test_an_object_whose_missing_label_only_a_list_showed_is_seen_again() -> None:
    told = Told()
    told.event("ADDED", "p", "a", 10)
    told.store.prune(set(), "20")
    told.store.store(thing("p", "a", 20))
    assert told.store.get("a") is None
    told.event("ADDED", "p", "a", 21)
    assert told.changes == [(None, "a@10"), ("a@10", None), (None, "a@21")]


def test_an_object_that_we_deleted_does_not_come_back() -> None:
    told = Told()
    told.event("ADDED", "p", "a", 10)
    told.store.forget("a")
    told.event("MODIFIED", "p", "a", 20)
    assert told.store.get("a") is None


class Lists:
    """A fake API server that lists the objects of each kind, by plural. Counts the lists, with content or without."""

    def __init__(self) -> None:
        self.objects: dict[str, list[Object]] = defaultdict(list)
        self.whole: Counter[str] = Counter()
        self.metadata: Counter[str] = Counter()
        self.named_after = 0
        self._listed = asyncio.Event()

    async def list(self, resource: Resource, labels: str = "") -> tuple[list[Object], str]:
        self.whole[resource.plural] += 1
        self._listed.set()
        await asyncio.sleep(0)
        return copy.deepcopy(self.objects[resource.plural]), "100"

    async def versions(self, resource: Resource, labels: str = "") -> tuple[dict[str, int], str]:
        self.metadata[resource.plural] += 1
        self._listed.set()
        await asyncio.sleep(0)
        found = (each["metadata"] for each in self.objects[resource.plural])
        return {each["uid"]: int(each["resourceVersion"]) for each in found}, "100"

    async def names(self, resource: Resource) -> bool:
        return self.whole[resource.plural] > self.named_after

    async def until(self, condition: Callable[[], bool]) -> None:
        """Looks at the condition at each list, until it is true."""
        async with asyncio.timeout(20):
            while not condition():
                self._listed.clear()
                await self._listed.wait()


@pytest.fixture
def lists(monkeypatch: pytest.MonkeyPatch) -> Lists:
    """Its sweeps follow each other without a pause."""
    for name in ("_EVERY_SECONDS", "_GATHER_SECONDS", "_RETRY_SECONDS"):
        monkeypatch.setattr(sweep, name, 0.0)
    return Lists()


@asynccontextmanager
async def sweeping(lists: Lists, stores: Stores) -> AsyncIterator[None]:
    task = asyncio.create_task(sweep.Sweep(cast(Api, lists), stores.of_kopf()).run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("kind", ["pools", "nodes", "classes", "quotas"])
def test_the_sweep_sees_what_kopf_does_not_report(lists: Lists, kind: str) -> None:
    async def follow() -> None:
        stores = Stores()
        store: Store = getattr(stores, kind)
        listed = lists.objects[store.resource.plural]
        async with sweeping(lists, stores):
            for version in (10, 20):
                listed[:] = [thing("x", "a", version)]
                await lists.until(lambda version=version: store.version("a") == version)  # type: ignore[misc]
            listed.clear()
            await lists.until(lambda: len(store) == 0)

    asyncio.run(follow())


def test_pods_are_listed_whole_only_after_two_lists_with_one_that_kopf_does_not_report(
    lists: Lists, caplog: pytest.LogCaptureFixture
) -> None:
    async def follow() -> None:
        stores = Stores()
        listed = lists.objects["pods"]
        listed[:] = [thing("p", "a", 10)]
        stores.pods.report({"type": "ADDED", "object": thing("p", "a", 10)})
        async with sweeping(lists, stores):
            await lists.until(lambda: lists.metadata["pods"] == 3)
            listed.append(thing("q", "b", 20))
            await lists.until(lambda: lists.metadata["pods"] == 4)
            stores.pods.report({"type": "ADDED", "object": thing("q", "b", 20)})
            await lists.until(lambda: lists.metadata["pods"] == 6)
            assert lists.whole["pods"] == 0
            assert not caplog.records
            listed[:] = [thing("p", "a", 30), thing("r", "c", 31)]
            await lists.until(lambda: stores.pods.version("a") == 30)
            assert {_state(each) for each in stores.pods} == {"a@30", "c@31"}
            assert lists.whole["pods"] == 1
            await lists.until(lambda: lists.metadata["pods"] == 12)
            assert lists.whole["pods"] == 1

    asyncio.run(follow())
    assert [each.getMessage() for each in caplog.records] == ["pods: kopf has not reported 2 that were listed before"]


def test_kopf_begins_when_the_api_server_names_each_group(lists: Lists) -> None:
    """kopf looks once which groups there are, and a moment after its kinds are served, a group may be missing."""
    lists.named_after = 3
    stores = Stores()
    asyncio.run(sweep.fill(cast(Api, lists), [stores.pools]))
    assert lists.whole["gpupools"] == 4
