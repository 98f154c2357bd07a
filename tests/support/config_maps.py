"""ConfigMaps without an API server, for tests in which each call of the code fails once."""

from __future__ import annotations

import datetime
from typing import Any

from remotegpu.api import usage
from remotegpu.api.usage import Record
from remotegpu_operator.cluster.kube import ApiError

Object = dict[str, Any]


class ConfigMaps:
    """The calls of the API server that a journal uses. A test sets which call fails, or from which call on all fail."""

    def __init__(self) -> None:
        self.kept: dict[str, Object] = {}
        self.fails_at = -1
        self.fails_from = -1
        self.calls = 0

    def _call(self) -> None:
        self.calls += 1
        if self.calls == self.fails_at or 0 <= self.fails_from < self.calls:
            raise ApiError(500, "InternalError", "as the test wants it")

    async def list(self, *_: object) -> tuple[list[Object], str]:
        self._call()
        return list(self.kept.values()), "1"

    async def get(self, _: object, namespace: str, name: str) -> Object:
        self._call()
        if name not in self.kept:
            raise ApiError(404, "NotFound", name)
        return self.kept[name]

    async def create(self, _: object, namespace: str, body: Object) -> Object:
        self._call()
        name = body["metadata"]["name"]
        if name in self.kept:
            raise ApiError(409, "AlreadyExists", name)
        made = datetime.datetime.now(datetime.UTC).isoformat()
        body["metadata"] |= {"uid": name, "creationTimestamp": made}
        self.kept[name] = body
        return body

    async def patch(self, _: object, namespace: str, name: str, body: Object) -> Object:
        self._call()
        if name not in self.kept:
            raise ApiError(404, "NotFound", name)
        self.kept[name]["data"] |= body["data"]
        assert sum(map(len, self.kept[name]["data"].values())) < 1 << 20, "the API server takes no more"
        return self.kept[name]

    async def delete(self, _: object, namespace: str, name: str, uid: str) -> None:
        self._call()
        self.kept.pop(name, None)

    def read(self) -> Record:
        return usage.read(self.kept.values())
