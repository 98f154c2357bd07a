"""A store of the API server's objects of one kind. Lists, watches and the answers to writes fill it."""

import logging
import math
from collections.abc import Callable, Collection, Iterator

from remotegpu_operator.cluster.kube import Object, Resource

_log = logging.getLogger(__name__)

# Called with the old and the new object. The old one is None after a creation, the new one after a deletion.
OnChange = Callable[[Object | None, Object | None], None]


class Store:
    """A store of objects by uid. An object that is created again under the same name is another object."""

    def __init__(
        self,
        resource: Resource,
        on_change: OnChange = lambda _before, _now: None,
        *,
        labels: str = "",
        keep: Callable[[Object], Object] = lambda thing: thing,
    ) -> None:
        """`on_change` is called after each change. `keep` returns the parts of an object to store; all by default.

        `labels` selects the objects that belong into the store; without them, all of a kind do.
        """
        self.resource = resource
        self.on_change = on_change
        self.labels = labels
        self._keep = keep
        self._objects: dict[str, Object] = {}
        self._uids: dict[tuple[str, str], str] = {}
        # Recently deleted uids, and the version of the deletion: older states may arrive after its report, such as the
        # answer to a write of ours. A newer one is of an object that has the label of this store again.
        self._deleted: dict[str, float] = {}

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
        """Stores an object from a list, a watch or the answer to a write. Ignores states that are not newer.

        It forgets first an older object of this name, whose deletion was not reported: both never exist at once.
        """
        uid, version = new["metadata"]["uid"], _version(new)
        if version <= self.version(uid):
            return
        if (former := self._uids.get(_name(new), uid)) != uid:
            if version < self.version(former):
                return
            self.forget(former, version)
        self._deleted.pop(uid, None)
        old = self._objects.get(uid)
        new["metadata"].pop("managedFields", None)
        new = self._keep(new)
        self._objects[uid] = new
        self._uids[_name(new)] = uid
        self._tell(old, new)

    def version(self, uid: str) -> float:
        """Returns the version of the newest known state of an object, which may be its deletion; 0 if it is unknown."""
        known = self._objects.get(uid)
        return self._deleted.get(uid, 0) if known is None else _version(known)

    def forget(self, uid: str, version: float = math.inf) -> None:
        """Forgets an object that was deleted, or that has lost the label of this store, at `version`."""
        if version < self.version(uid):
            return
        self._deleted[uid] = version
        if len(self._deleted) > 10_000:
            self._deleted.pop(next(iter(self._deleted)))
        old = self._objects.pop(uid, None)
        if old is not None:
            if self._uids.get(_name(old)) == uid:
                del self._uids[_name(old)]
            self._tell(old, None)

    def report(self, event: Object) -> None:
        """Follows an event of a watch. kopf makes events without a type from its lists."""
        if event["type"] == "DELETED":
            self.forget(event["object"]["metadata"]["uid"], _version(event["object"]))
        else:
            self.store(event["object"])

    def replace(self, items: Collection[Object], version: str) -> None:
        """Stores a list of all objects at `version`, and forgets the objects that are not in it."""
        self.prune({item["metadata"]["uid"] for item in items}, version)
        for item in items:
            self.store(item)

    def prune(self, present: Collection[str], version: str) -> None:
        """Forgets the objects that are not `present` in a list at `version`, unless they are newer than the list.

        The list may be older than a write of ours, because another API server may answer from an older cache.
        """
        for uid in self._objects.keys() - present:
            if _version(self._objects[uid]) <= int(version):
                self.forget(uid, int(version))

    def _tell(self, old: Object | None, new: Object | None) -> None:
        """Calls `on_change`. An exception is only logged, so that a broken object does not stop the watch."""
        try:
            self.on_change(old, new)
        except Exception:
            thing = new or old
            assert thing is not None
            where = thing["metadata"].get("namespace", ""), thing["metadata"]["name"]
            _log.exception("%s %r: what it contains cannot be used; correct or delete it", self.resource.kind, where)


def _name(thing: Object) -> tuple[str, str]:
    return thing["metadata"].get("namespace", ""), thing["metadata"]["name"]


def _version(thing: Object) -> int:
    """Returns the object's resource version, a number that grows within a kind (guaranteed since Kubernetes 1.35)."""
    return int(thing["metadata"]["resourceVersion"])
