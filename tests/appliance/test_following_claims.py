"""An appliance distrusts lists of an API server that was unreachable: they may be older than what it knows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from remotegpu.appliance.claims import kubernetes
from remotegpu.appliance.claims.kubernetes import ApiServer


class Told:
    """A listener that records the lists it was given, and the reasons; `done` is set after `enough` lists."""

    def __init__(self, enough: int) -> None:
        self.lists: list[list[str]] = []
        self.reasons: list[str] = []
        self.enough = enough
        self.done = asyncio.Event()

    def listed(self, claims: Iterable[dict[str, Any]]) -> None:
        self.lists.append([claim["name"] for claim in claims])
        if len(self.lists) == self.enough:
            self.done.set()

    def changed(self, claim: dict[str, Any]) -> None: ...

    def deleted(self, claim: dict[str, Any]) -> None: ...

    def unreachable(self, why: str) -> None:
        self.reasons.append(why)


class Objects:
    """Returns the lists in turn, the last one repeatedly; each watch ends with an error at once."""

    def __init__(self, *lists: tuple[str, list[str]]) -> None:
        self.lists = list(lists)

    async def list_cluster_custom_object(self, *_: Any, **options: Any) -> dict[str, Any]:
        if options.get("watch"):
            raise TimeoutError
        version, names = self.lists.pop(0) if len(self.lists) > 1 else self.lists[0]
        return {"metadata": {"resourceVersion": version}, "items": [{"name": name} for name in names]}


def follow(monkeypatch: pytest.MonkeyPatch, enough: int, *lists: tuple[str, list[str]]) -> Told:
    monkeypatch.setattr(kubernetes, "_FIRST_PAUSE_SECONDS", 0.0)

    async def run() -> Told:
        told = Told(enough)
        api = object.__new__(ApiServer)
        api._objects = Objects(*lists)
        following = asyncio.create_task(api.follow_claims(told))
        async with asyncio.timeout(20):
            await told.done.wait()
        following.cancel()
        return told

    return asyncio.run(run())


def test_a_list_of_an_earlier_time_deletes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    told = follow(monkeypatch, 2, ("100", ["old", "new"]), ("99", ["old"]), ("101", ["old", "new"]))
    assert told.lists == [["old", "new"], ["old", "new"]]
    assert any("99" in why and "100" in why for why in told.reasons)


def test_a_cluster_that_was_put_back_is_believed_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    told = follow(monkeypatch, 2, ("100", ["old", "new"]), ("7", ["old"]))
    assert told.lists == [["old", "new"], ["old"]]
    assert sum("7" in why for why in told.reasons) == kubernetes._STALE_LISTS
