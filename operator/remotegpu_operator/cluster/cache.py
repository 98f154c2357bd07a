"""A cache of the API server's objects of one kind, kept up to date by a watch.

kopf's event handlers are not sufficient for claims and pods. After a lost watch they list again, but do not report
objects that were deleted in between. A claim that was deleted then would keep its share without end.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Final

from remotegpu_operator.cluster.kube import Api, ApiError, Object, Resource, Unanswered

_log = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 1.0

# Called with the old and the new object. The old one is None after a creation, the new one after a deletion.
OnChange = Callable[[Object | None, Object | None], None]


class Cache:
    """A cache of objects by uid. An object that is created again under the same name is another object."""

    def __init__(
        self,
        api: Api,
        resource: Resource,
        on_change: OnChange,
        *,
        namespace: str | None = None,
        labels: str = "",
        keep: Callable[[Object], Object] = lambda thing: thing,
    ) -> None:
        """`on_change` is called after each change. `keep` returns the parts of an object to store; all by default.

        `namespace` and `labels` limit the objects; without them, the cache has all of a kind.
        """
        self._api = api
        self.resource = resource
        self._on_change = on_change
        self._namespace = namespace
        self._labels = labels
        self._keep = keep
        self._objects: dict[str, Object] = {}
        self._uids: dict[tuple[str, str], str] = {}
        # Recently deleted uids: the answer to a write of ours may arrive after the report of the deletion.
        self._deleted: dict[str, None] = {}
        self.synced = asyncio.Event()

    def __iter__(self) -> Iterator[Object]:
        return iter(list(self._objects.values()))

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, uid: str) -> Object | None:
        return self._objects.get(uid)

    def named(self, namespace: str, name: str) -> Object | None:
        """Returns the object that has the name now, or None."""
        return self._objects.get(self._uids.get((namespace, name), ""))

    def store(self, new: Object) -> None:
        """Stores an object from a list, a watch or the answer to a write. Ignores states that are not newer."""
        uid = new["metadata"]["uid"]
        old = self._objects.get(uid)
        if uid in self._deleted or (old is not None and _version(new) <= _version(old)):
            return
        new["metadata"].pop("managedFields", None)
        new = self._keep(new)
        self._objects[uid] = new
        self._uids[_name(new)] = uid
        self._tell(old, new)

    def forget(self, uid: str) -> None:
        self._deleted[uid] = None
        if len(self._deleted) > 10_000:
            self._deleted.pop(next(iter(self._deleted)))
        old = self._objects.pop(uid, None)
        if old is not None:
            if self._uids.get(_name(old)) == uid:
                del self._uids[_name(old)]
            self._tell(old, None)

    def _tell(self, old: Object | None, new: Object | None) -> None:
        """Calls `on_change`. An exception is only logged, so that a broken object does not stop the watch."""
        try:
            self._on_change(old, new)
        except Exception:
            thing = new or old
            assert thing is not None
            where = thing["metadata"].get("namespace", ""), thing["metadata"]["name"]
            _log.exception("%s %r: what it contains cannot be used; correct or delete it", self.resource.kind, where)

    async def run(self) -> None:
        """Lists the objects and then watches them, until cancelled."""
        version = ""
        while True:
            try:
                version = version or await self._list()
                async for event in self._api.watch(self.resource, version, self._namespace, self._labels):
                    version = event["object"]["metadata"]["resourceVersion"]
                    match event["type"]:
                        case "DELETED":
                            self.forget(event["object"]["metadata"]["uid"])
                        case "ADDED" | "MODIFIED":
                            self.store(event["object"])
            except ApiError as error:
                # The version is too old, or the watch failed for another reason: list again.
                version = ""
                if not error.gone:
                    _log.warning("watching %s: %s", self.resource.plural, error)
                    await asyncio.sleep(_RETRY_SECONDS)
            except Unanswered as error:
                _log.warning("watching %s: the API server does not answer (%r)", self.resource.plural, error)
                await asyncio.sleep(_RETRY_SECONDS)

    async def _list(self) -> str:
        """Lists all objects, and forgets objects that are not in the list, unless they are newer than the list.

        The list may be older than a write of ours, because another API server may answer from an older cache. A watch
        from the list's version then reports the later changes. Returns this version.
        """
        items, version = await self._api.list(self.resource, self._namespace, self._labels)
        present = {item["metadata"]["uid"] for item in items}
        for uid in self._objects.keys() - present:
            if _version(self._objects[uid]) <= int(version):
                self.forget(uid)
        for item in items:
            self.store(item)
        self.synced.set()
        return version


def _name(thing: Object) -> tuple[str, str]:
    return thing["metadata"].get("namespace", ""), thing["metadata"]["name"]


def _version(thing: Object) -> int:
    """Returns the object's resource version, a number that grows within a kind (guaranteed since Kubernetes 1.35)."""
    return int(thing["metadata"]["resourceVersion"])
