"""Tests of the cache of the API server's objects, with a real API server."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator, Callable, Sequence
from typing import cast

import pytest
from support.apiserver import ApiServer
from support.kubelab import Kube

from remotegpu_operator.cluster.cache import Cache
from remotegpu_operator.cluster.kube import Api, ApiError, Object, Resource, configuration

CONFIG_MAPS = Resource("v1", "configmaps", "ConfigMap")
HERE = "/api/v1/namespaces/cache/configmaps"


class Seen:
    """Records the changes that a cache reports, by object name: the versions in order, and None for a deletion."""

    def __init__(self) -> None:
        self.states: dict[str, list[str | None]] = {}
        self.changed = asyncio.Event()

    def __call__(self, old: Object | None, new: Object | None) -> None:
        thing = new or old
        assert thing is not None
        name = thing["metadata"]["name"]
        self.states.setdefault(name, []).append(new["data"]["key"] if new else None)
        self.changed.set()

    async def until(self, **states: list[str | None]) -> None:
        async with asyncio.timeout(20):
            while any(self.states.get(name) != wanted for name, wanted in states.items()):
                self.changed.clear()
                await self.changed.wait()


@pytest.fixture
def api_kube(server: ApiServer) -> Kube:
    kube = Kube(server.kubeconfig)
    kube.namespace("cache")
    for each in kube.items(HERE):
        kube("DELETE", f"{HERE}/{each['metadata']['name']}")
    return kube


def make(kube: Kube, name: str, label: str = "ours") -> Object:
    return kube("POST", HERE, {"metadata": {"name": name, "labels": {"of": label}}, "data": {"key": "1"}})


@contextlib.asynccontextmanager
async def running(cache: Cache) -> AsyncIterator[None]:
    task = asyncio.create_task(cache.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_it_follows_what_has_the_label_and_nothing_else(api_kube: Kube) -> None:
    async def follow() -> None:
        seen = Seen()
        make(api_kube, "before")
        make(api_kube, "foreign", "others")
        async with Api(await configuration(api_kube.kubeconfig)) as api:
            cache = Cache(api, CONFIG_MAPS, seen, namespace="cache", labels="of=ours")
            async with running(cache):
                await seen.until(before=["1"])
                api_kube.merge(f"{HERE}/before", {"data": {"key": "2"}})
                made = make(api_kube, "after")
                api_kube("DELETE", f"{HERE}/after")
                await seen.until(before=["1", "2"], after=["1", None])
                # The answer to a write may arrive after the report of a later change.
                cache.store(made)
                assert cache.get(made["metadata"]["uid"]) is None
                assert cache.named("cache", "before") is not None
                assert "foreign" not in seen.states

    asyncio.run(follow())


def test_deletions_while_nobody_watched_are_reported(api_kube: Kube) -> None:
    async def follow() -> None:
        seen = Seen()
        make(api_kube, "stays")
        make(api_kube, "goes")
        make(api_kube, "anew")
        async with Api(await configuration(api_kube.kubeconfig)) as api:
            cache = Cache(api, CONFIG_MAPS, seen, namespace="cache")
            async with running(cache):
                await seen.until(stays=["1"], goes=["1"], anew=["1"])
            api_kube("DELETE", f"{HERE}/goes")
            api_kube("DELETE", f"{HERE}/anew")
            make(api_kube, "anew")
            async with running(cache):
                await seen.until(stays=["1"], goes=["1", None], anew=["1", None, "1"])

    asyncio.run(follow())


def test_an_object_that_cannot_be_used_does_not_end_the_watch_of_the_others(
    api_kube: Kube, caplog: pytest.LogCaptureFixture
) -> None:
    async def follow() -> None:
        seen = Seen()

        def tell(old: Object | None, new: Object | None) -> None:
            if (new or old or {})["metadata"]["name"] == "poison":
                raise ValueError("zip() argument 2 is longer than argument 1")
            seen(old, new)

        make(api_kube, "poison")
        async with (
            Api(await configuration(api_kube.kubeconfig)) as api,
            running(Cache(api, CONFIG_MAPS, tell, namespace="cache")),
        ):
            make(api_kube, "other")
            await seen.until(other=["1"])
            api_kube("DELETE", f"{HERE}/poison")
            api_kube.merge(f"{HERE}/other", {"data": {"key": "2"}})
            await seen.until(other=["1", "2"])
        assert "'poison'" in caplog.text

    asyncio.run(follow())


def test_refusals_name_the_object_and_deleting_twice_is_allowed(api_kube: Kube) -> None:
    async def ask() -> None:
        async with Api(await configuration(api_kube.kubeconfig)) as api:
            with pytest.raises(ApiError, match="nothing") as caught:
                await api.get(CONFIG_MAPS, "cache", "nothing")
            assert caught.value.gone
            old = make(api_kube, "twice")
            api_kube("DELETE", f"{HERE}/twice")
            new = make(api_kube, "twice")
            await api.delete(CONFIG_MAPS, "cache", "twice", old["metadata"]["uid"])
            assert api_kube.get(f"{HERE}/twice")["metadata"]["uid"] == new["metadata"]["uid"], (
                "another one is not touched"
            )
            await api.delete(CONFIG_MAPS, "cache", "nothing", "no uid")
            stale = {"metadata": {"resourceVersion": old["metadata"]["resourceVersion"]}, "data": {"key": "9"}}
            with pytest.raises(ApiError) as caught:
                await api.patch(CONFIG_MAPS, "cache", "twice", stale)
            assert caught.value.conflict

    asyncio.run(ask())


def test_lists_longer_than_a_page_are_whole(api_kube: Kube, monkeypatch: pytest.MonkeyPatch) -> None:
    async def count() -> None:
        for number in range(7):
            make(api_kube, f"m{number}")
        async with Api(await configuration(api_kube.kubeconfig)) as api:
            items, version = await api.list(CONFIG_MAPS, "cache")
            assert [item["metadata"]["name"] for item in items] == [f"m{number}" for number in range(7)]
            assert int(version) > 0

    monkeypatch.setattr("remotegpu_operator.cluster.kube.PAGE", 3)
    asyncio.run(count())


def config_map(name: str, uid: str, version: int) -> Object:
    metadata = {"namespace": "cache", "name": name, "uid": uid, "resourceVersion": str(version)}
    return {"metadata": metadata, "data": {"key": str(version)}}


class Lists:
    """A fake API server that answers each list call with one of `answers`.

    Later calls get no answer, and watches end at once.
    """

    def __init__(self, answers: Sequence[tuple[list[Object], int]]) -> None:
        self._answers = list(answers)
        self.meanwhile: Callable[[], None] = lambda: None
        self.all_told = asyncio.Event()

    async def list(self, *_: object) -> tuple[list[Object], str]:
        if not self._answers:
            self.all_told.set()
            await asyncio.Event().wait()
        items, version = self._answers.pop(0)
        if not self._answers:
            self.meanwhile()
        return copy.deepcopy(items), str(version)

    async def watch(self, *_: object) -> AsyncIterator[Object]:
        raise ApiError(410, "Expired", "too old resource version")
        yield {}


class Refusals(Lists):
    """Refuses each list with one of `statuses`. A later one is answered."""

    def __init__(self, statuses: Sequence[int]) -> None:
        super().__init__([([], 1)])
        self._statuses = list(statuses)

    async def list(self, *more: object) -> tuple[list[Object], str]:
        if self._statuses:
            raise ApiError(self._statuses.pop(0), "a reason", "a message")
        return await super().list(*more)


def test_a_kind_that_is_not_served_is_asked_for_with_pauses(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Only a version that is too old (410) needs none: there is another one at once."""
    paused, pause = list[float](), asyncio.sleep

    async def count(seconds: float) -> None:
        paused.append(seconds)
        await pause(0)

    async def follow() -> None:
        lists = Refusals([404, 404, 410, 500])
        async with running(Cache(cast(Api, lists), CONFIG_MAPS, Seen())):
            await asyncio.wait_for(lists.all_told.wait(), 20)

    monkeypatch.setattr(asyncio, "sleep", count)
    asyncio.run(follow())
    assert paused == [1.0, 1.0, 1.0]
    assert [each.getMessage() for each in caplog.records if each.levelname == "WARNING"] == [
        f"watching configmaps: a message ({status} a reason)" for status in (404, 404, 500)
    ]


def told_of(*answers: tuple[list[Object], int], meanwhile: Sequence[Object] = ()) -> dict[str, list[str | None]]:
    """Returns the changes that a cache reports for these lists. `meanwhile` is stored during the last list call."""

    async def follow() -> dict[str, list[str | None]]:
        seen, lists = Seen(), Lists(answers)
        cache = Cache(cast(Api, lists), CONFIG_MAPS, seen)

        def store() -> None:
            for each in meanwhile:
                cache.store(each)

        lists.meanwhile = store
        async with running(cache):
            await asyncio.wait_for(lists.all_told.wait(), 20)
        return seen.states

    return asyncio.run(follow())


def test_a_list_that_is_older_than_what_was_seen_takes_nothing_away() -> None:
    """Another API server with an older cache may return such a list."""
    old, new = config_map("old", "1", 30), config_map("new", "2", 80)
    gone, changed = config_map("gone", "3", 20), config_map("changed", "4", 90)
    before = config_map("changed", "4", 40)
    seen = told_of(([old, new, gone, changed], 100), ([old, before], 50))
    assert seen["new"] == ["80"], "it was made after that list"
    assert seen["old"] == ["30"]
    assert seen["changed"] == ["90"], "it was not what it had been before"
    assert seen["gone"] == ["20", None], "it had been deleted by then"


def test_what_we_make_while_a_list_is_on_its_way_stays() -> None:
    """The answer to the write may arrive before the list, which does not contain the object."""
    old, made = config_map("old", "1", 30), config_map("made", "2", 105)
    assert told_of(([old], 90), ([old], 100), meanwhile=[made]) == {"old": ["30"], "made": ["105"]}
