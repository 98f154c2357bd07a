"""Decides whether a container's fraction is from the author of the pod or is a default (LimitRange, Kyverno, ...).

The webhook replaces a fraction by thousandths. Afterwards a LimitRange may fill in a default fraction, and the API
server calls the webhook again for the same request. Two sources distinguish the cases:

- `managedFields`: the API server's record of who set which field, made from the author's object before any default.
- The webhook's mark, an annotation with the converted containers and the request. With a forged mark the author's
  thousandths are used and the fraction is ignored. A copied mark belongs to another request and is ignored.
"""

import datetime
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from remotegpu.api.kubernetes import CONVERTED_ANNOTATION, FRACTION, MILLI
from remotegpu.api.pods import Container, Object, Path, Pod, at, replaced, without_key
from remotegpu_operator.webhook.template import containers_set_by

# The age below which a record may belong to this request: records have whole seconds, and clocks differ by up to one.
_YOUNG_SECONDS: Final = 2.0
_MARKS: Final = ("metadata", "annotations")


@dataclass(frozen=True, slots=True)
class Origin:
    # A name for the request, the same in all passes.
    request: str = ""
    # Thousandths by container, from fractions that an earlier pass of the request converted.
    converted: Mapping[str, str] = field(default_factory=dict)
    # The containers whose fraction, or thousandths, the author's object had; None without a record.
    fraction: frozenset[str] | None = None
    milli: frozenset[str] = frozenset()

    @classmethod
    def of(cls, request: Mapping[str, Any], path: Path, withdrawn: frozenset[str] = frozenset()) -> Self:
        """Reads an admission request.

        `path` is the path of the pod spec. `withdrawn` has the containers whose fraction this update removes.
        """
        new, old = request["object"], request.get("oldObject") or {}
        manager = at(request, ("options",)).get("fieldManager") or ""
        records = list(_sent(_records(new), _records(old), manager))
        # Thousandths in the old object also count as sent, except those that we wrote for a removed fraction.
        before = {str(each.name) for each in Pod.of(old, path).containers if MILLI in each.limits} - withdrawn
        name = _name_of(new, old)
        return cls(
            name,
            _read_mark(new, name),
            _names(records, path, FRACTION) if _records(new) else None,
            _names(records, path, MILLI) | before,
        )

    def is_default(self, container: Container) -> bool:
        """Whether the container has thousandths, and its fraction is only a default."""
        name = str(container.name)
        if MILLI not in container.limits:
            return False
        if name in self.converted:
            return True
        return self.fraction is not None and name not in self.fraction and name in self.milli

    def marked(self, document: Object, converted: Mapping[str, str]) -> Object:
        """Returns `document` with the mark for thousandths that replaced fractions, by container."""
        if not converted:
            return document
        mark = {"request": self.request, "milli": {**self.converted, **converted}}
        notes = {**at(document, _MARKS), CONVERTED_ANNOTATION: json.dumps(mark, sort_keys=True)}
        return replaced(document, _MARKS, notes)


def with_old_mark(old: Object, new: Object) -> Object:
    """Returns `new` with the mark of `old`, so that the two objects can be compared without their marks."""
    mark = at(old, _MARKS).get(CONVERTED_ANNOTATION)
    if mark is None:
        return without_key(new, _MARKS, CONVERTED_ANNOTATION)
    return replaced(new, _MARKS, {**at(new, _MARKS), CONVERTED_ANNOTATION: mark})


def _name_of(new: Object, old: Object) -> str:
    """Returns a name for a request. It is the same in all passes, and different for a request with a copied object."""
    if version := at(old, ("metadata",)).get("resourceVersion"):
        return f"of {version}"
    text = json.dumps(_records(new), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _read_mark(document: Object, request: str) -> Mapping[str, str]:
    """Returns the thousandths by container in the mark; empty if there is no mark of this request."""
    try:
        mark = json.loads(at(document, _MARKS).get(CONVERTED_ANNOTATION, "null"))
        return {str(k): str(v) for k, v in mark["milli"].items()} if mark["request"] == request else {}
    except (AttributeError, KeyError, TypeError, ValueError):
        return {}  # written by a user


def _records(document: Object) -> list[Object]:
    return at(document, ("metadata",)).get("managedFields") or []


def _sent(new: list[Object], old: list[Object], manager: str) -> Iterator[Object]:
    """Yields the records in `managedFields` that belong to this request.

    For an update these are the new or changed records. An unchanged record of the same manager also counts if it is
    young: times are whole seconds, so two equal updates within a second leave equal records. For a new object these are
    the latest records: the others may be copied from another object.
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
