"""Finds out which fraction of a container is its author's, and which a default of others: LimitRange, Kyverno, ....

We take the fraction out, so others may fill it in again and the API server calls us once more for the same request. Two
things tell the cases apart:

- the records of who set what, which the API server makes from the author's object, before any default;
- our mark, an annotation: what we converted, for which request. If a user forges one, his thousandths count and the
  fraction next to them does not, as if he had left out the fraction. A copied mark is of another request, and ignored.
"""

import datetime
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from remotegpu.api.kubernetes import CONVERTED_ANNOTATION, FRACTION, MILLI
from remotegpu.api.pods import Object, containers, limits, requests
from remotegpu_operator.webhook.template import Path, at, containers_set_by, replaced, without_key

# A second in which records are the same, and another one for clocks that differ.
_YOUNG_SECONDS: Final = 2.0
_MARKS: Final = ("metadata", "annotations")


@dataclass(frozen=True, slots=True)
class Origin:
    # Names the request, in all its passes.
    request: str = ""
    # Thousandths by container that an earlier pass of the request converted.
    converted: Mapping[str, str] = field(default_factory=dict)
    # Containers whose fraction, or thousandths, were in the author's object; None: there is no record.
    fraction: frozenset[str] | None = None
    milli: frozenset[str] = frozenset()

    @classmethod
    def of(cls, request: Mapping[str, Any], path: Path, withdrawn: frozenset[str] = frozenset()) -> Self:
        """Reads a request. `path`: where the pod spec is; `withdrawn`: containers whose fraction was just removed."""
        new, old = request["object"], request.get("oldObject") or {}
        manager = at(request, ("options",)).get("fieldManager") or ""
        records = list(_sent(_records(new), _records(old), manager))
        # Values that were there already count as sent, except those that we wrote for a fraction that was removed.
        before = {str(each.get("name")) for each in containers(at(old, path)) if MILLI in limits(each)} - withdrawn
        name = _name_of(new, old)
        return cls(
            name,
            _read_mark(new, name),
            _names(records, path, FRACTION) if _records(new) else None,
            _names(records, path, MILLI) | before,
        )

    def is_default(self, container: Object) -> bool:
        """Whether the container has its thousandths, and the fraction next to them is only a default."""
        name = str(container.get("name"))
        if MILLI not in limits(container):
            return False
        if name in self.converted:
            return True
        return self.fraction is not None and name not in self.fraction and name in self.milli

    def marked(self, document: Object, before: Object, after: Object) -> Object:
        """Returns `document` with the mark, where pod spec `before` was converted to `after`."""
        pairs = zip(containers(before), containers(after), strict=True)
        converted = {
            str(now["name"]): limits(now)[MILLI]
            for sent, now in pairs
            if now.get("name") and FRACTION in {**limits(sent), **requests(sent)} and not self.is_default(sent)
        }
        if not converted:
            return document
        mark = {"request": self.request, "milli": {**self.converted, **converted}}
        notes = {**at(document, _MARKS), CONVERTED_ANNOTATION: json.dumps(mark, sort_keys=True)}
        return replaced(document, _MARKS, notes)


def with_old_mark(old: Object, new: Object) -> Object:
    """Returns `new` with the stored object's mark, for comparison: if nothing else differs, nothing is stored."""
    mark = at(old, _MARKS).get(CONVERTED_ANNOTATION)
    if mark is None:
        return without_key(new, _MARKS, CONVERTED_ANNOTATION)
    return replaced(new, _MARKS, {**at(new, _MARKS), CONVERTED_ANNOTATION: mark})


def _name_of(new: Object, old: Object) -> str:
    """Returns a name for a request: the same in all its passes, another for a copy of its result."""
    if version := at(old, ("metadata",)).get("resourceVersion"):
        return f"of {version}"
    text = json.dumps(_records(new), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _read_mark(document: Object, request: str) -> Mapping[str, str]:
    """Returns the thousandths in the mark if it is of this request, else none."""
    try:
        mark = json.loads(at(document, _MARKS).get(CONVERTED_ANNOTATION, "null"))
        return {str(k): str(v) for k, v in mark["milli"].items()} if mark["request"] == request else {}
    except (AttributeError, KeyError, TypeError, ValueError):
        return {}  # written by a user


def _records(document: Object) -> list[Object]:
    return at(document, ("metadata",)).get("managedFields") or []


def _sent(new: list[Object], old: list[Object], manager: str) -> Iterator[Object]:
    """Yields the records of this request: new or changed ones, and in a new object the latest.

    A new object may have come with the records of the object that it was copied from. Times are whole seconds: what its
    manager sends twice within one second leaves the same record, and counts as sent.
    """
    if old:
        yield from (each for each in new if each not in old or (manager in ("", each.get("manager")) and _young(each)))
    else:
        latest = max((each.get("time") or "" for each in new), default="")
        yield from (each for each in new if (each.get("time") or "") == latest)


def _young(record: Object) -> bool:
    try:
        then = datetime.datetime.fromisoformat(record["time"])
    except (KeyError, TypeError, ValueError):
        return False
    return (datetime.datetime.now(datetime.UTC) - then).total_seconds() < _YOUNG_SECONDS


def _names(records: list[Object], path: Path, resource: str) -> frozenset[str]:
    return frozenset(name for each in records for name in containers_set_by(each, path, resource))
