"""The reflector: lists in pages, objects of any size, lost watches, and lists that are older than what it knows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from kubernetes.aio import client, config
from support.apiserver import ApiServer
from support.kubelab import POOLS, Kube, in_parallel, pool, serve_crds

from remotegpu.kube import reflector
from remotegpu.kube.reflector import Change, Changed, Deleted, Listed, Unreachable, follow


class Objects:
    """A stand-in for the API: returns the lists in turn, the last one repeatedly; each watch ends with an error."""

    def __init__(self, *lists: tuple[str, list[str]]) -> None:
        self.lists = list(lists)

    async def list_cluster_custom_object(self, *_: Any, **__: Any) -> dict[str, Any]:
        version, names = self.lists.pop(0) if len(self.lists) > 1 else self.lists[0]
        return {"metadata": {"resourceVersion": version}, "items": [{"name": name} for name in names]}

    async def list_cluster_custom_object_without_preload_content(self, *_: Any, **__: Any) -> Any:
        raise TimeoutError


async def until(changes: AsyncIterator[Change], enough: Callable[[list[Change]], bool]) -> list[Change]:
    seen: list[Change] = []
    async with asyncio.timeout(60):
        async for change in changes:
            seen.append(change)
            if enough(seen):
                break
    return seen


def lists(changes: list[Change]) -> list[list[str]]:
    return [[each["name"] for each in change.objects] for change in changes if isinstance(change, Listed)]


def two_lists(monkeypatch: pytest.MonkeyPatch, *given: tuple[str, list[str]]) -> list[Change]:
    monkeypatch.setattr(reflector, "_FIRST_PAUSE_SECONDS", 0.0)
    api: Any = Objects(*given)
    return asyncio.run(until(follow(api, "gpuclaims"), lambda seen: len(lists(seen)) == 2))


def test_a_list_of_an_earlier_time_deletes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = two_lists(monkeypatch, ("100", ["old", "new"]), ("99", ["old"]), ("101", ["old", "new"]))
    assert lists(seen) == [["old", "new"], ["old", "new"]]
    causes = [change.cause for change in seen if isinstance(change, Unreachable)]
    assert any("99" in cause and "100" in cause for cause in causes)


def test_a_cluster_that_was_restored_is_believed_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = two_lists(monkeypatch, ("100", ["old", "new"]), ("7", ["old"]))
    assert lists(seen) == [["old", "new"], ["old"]]
    assert sum("7" in each.cause for each in seen if isinstance(each, Unreachable)) == reflector.STALE_LISTS


@pytest.fixture(scope="module")
def kube(apiserver: ApiServer) -> Kube:
    serve_crds(apiserver)
    return Kube(apiserver.kubeconfig)


def names(change: Change) -> set[str]:
    match change:
        case Listed(objects):
            return {each["metadata"]["name"] for each in objects}
        case Changed(each) | Deleted(each):
            return {each["metadata"]["name"]}
    return set()


def test_pages_and_objects_of_any_size(apiserver: ApiServer, kube: Kube, monkeypatch: pytest.MonkeyPatch) -> None:
    """aiohttp's own lines end at 128 KiB; an annotation may have 256."""
    monkeypatch.setattr(reflector, "_PAGE", 3)
    made = [f"paged-{number}" for number in range(8)]
    in_parallel(lambda name: kube("POST", POOLS, pool(name)), made)

    async def seen() -> tuple[list[Change], list[Change]]:
        configuration = client.Configuration()
        await config.load_kube_config(str(apiserver.kubeconfig), client_configuration=configuration)
        async with client.ApiClient(configuration) as api:
            changes = follow(client.CustomObjectsApi(api), "gpupools")
            listed = await until(changes, lambda seen: isinstance(seen[-1], Listed))
            large = pool("paged-large")
            large["metadata"]["annotations"] = {"large": "x" * 200_000}
            await asyncio.to_thread(kube, "POST", POOLS, large)
            await asyncio.to_thread(kube, "DELETE", f"{POOLS}/paged-large")
            return listed, await until(changes, lambda seen: isinstance(seen[-1], Deleted))

    try:
        listed, after = asyncio.run(seen())
    finally:
        for name in made:
            kube("DELETE", f"{POOLS}/{name}")
    assert set(made) <= names(listed[-1])
    assert [type(change) for change in after if "paged-large" in names(change)] == [Changed, Deleted]
    assert not [change for change in after if isinstance(change, Unreachable)]


def test_a_version_that_is_too_old_is_listed_again(apiserver: ApiServer, kube: Kube) -> None:
    """The API server answers 410 in an event ERROR, of which nobody is told: the list follows."""

    async def seen() -> list[Change]:
        configuration = client.Configuration()
        await config.load_kube_config(str(apiserver.kubeconfig), client_configuration=configuration)
        async with client.ApiClient(configuration) as api:
            objects = client.CustomObjectsApi(api)
            watch = objects.list_cluster_custom_object_without_preload_content
            asked: list[str] = []

            async def old_at_first(*arguments: Any, **options: Any) -> Any:
                asked.append(options["resource_version"])
                return await watch(*arguments, **options | ({"resource_version": "1"} if len(asked) == 1 else {}))

            objects.list_cluster_custom_object_without_preload_content = old_at_first
            return await until(follow(objects, "gpupools"), lambda seen: sum(isinstance(c, Listed) for c in seen) == 2)

    assert not [change for change in asyncio.run(seen()) if isinstance(change, Unreachable)]
