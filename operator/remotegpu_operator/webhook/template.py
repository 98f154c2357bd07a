"""Converts the fractions in pod specs to thousandths, and removes thousandths again when their fraction is removed."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from remotegpu.api.kubernetes import FRACTION, MILLI
from remotegpu.api.pods import Object, PodError, containers, count_of, limits, requests
from remotegpu.api.quantities import MILLI_PER_GPU, QuantityError, parse_fraction, parse_quantity

# The annotation in which `kubectl apply` stores the last manifest.
LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
# The field manager of Helm, which stores its last manifest elsewhere. Helm sets a fraction in each update while the
# manifest has one. So Helm has removed a fraction if its update sets none, but its record has one.
HELM: Final = "helm"

Path = tuple[str, ...]


def with_milli(
    spec: Object, annotations: Mapping[str, str], is_default: Callable[[Object], bool] = lambda _: False
) -> Object:
    """Returns the spec with thousandths in place of fractions; the same object if there are no fractions.

    `is_default` returns whether a container's fraction is only a default next to its thousandths. Such a fraction is
    removed. Raises PodError if a fraction is invalid.
    """
    if not any(FRACTION in limits(c) or FRACTION in requests(c) for c in containers(spec)):
        return spec
    count = count_of(annotations)
    return each_container(spec, lambda one: _without_fraction(one) if is_default(one) else _converted(one, count))


def without_withdrawn(old: Object, new: Object, path: Path, manager: str) -> Object:
    """Returns the pod spec of `new` without our thousandths for fractions that `manager` removes by this update.

    The author's manifest does not have the thousandths that we wrote. So an apply without the fraction would not remove
    them.
    """
    spec = at(new, path)
    gone = withdrawn(old, new, path, manager)
    if not gone:
        return spec
    by_hand = _applied(new, path, MILLI) | _managed(new, path, MILLI, manager) | _managed(new, path, MILLI, "", "Apply")
    before = {c.get("name"): c for c in containers(at(old, path))}

    def strip(container: Object) -> Object:
        name, limit, was = container.get("name"), limits(container).get(MILLI), before.get(container.get("name"), {})
        if name not in gone or FRACTION in limits(container):
            return container
        if limit is None or (limit == limits(was).get(MILLI) and name not in by_hand):
            return _with_amounts(container, lambda amounts: {k: v for k, v in amounts.items() if k != MILLI})
        if requests(container).get(MILLI) == requests(was).get(MILLI):
            # The author now sets thousandths in limits, but the request still has the thousandths that we wrote.
            return _with_amounts(container, lambda amounts: {**amounts, MILLI: limit})
        return container

    return each_container(spec, strip)


def with_old_records(old: Object, new: Object) -> Object:
    """Returns `old` if `new` differs only in time and order of `managedFields`, so that the API server stores nothing.

    When a manifest is applied again, the API server sees the fraction as newly set: it changes the time of the record,
    and moves the record in the list if another manager has written since. The content is unchanged.
    """
    before, after = at(old, ("metadata",)), at(new, ("metadata",))
    records = before.get("managedFields")
    if not records or _without_times(records) != _without_times(after.get("managedFields") or []):
        return new
    as_before = replaced(new, ("metadata", "managedFields"), records)
    return as_before if as_before == old else new


def _without_times(records: list[Object]) -> list[str]:
    return sorted(json.dumps({k: v for k, v in entry.items() if k != "time"}, sort_keys=True) for entry in records)


def at(document: Object, path: Path) -> Object:
    """Returns the object at `path`; empty if a part of the path is missing or null."""
    for key in path:
        document = document.get(key) or {}
    return document


def replaced(document: Object, path: Path, value: Object) -> Object:
    """Returns a copy of `document` with `value` at `path`. Other parts are shared, not copied."""
    if not path:
        return value
    return {**document, path[0]: replaced(document.get(path[0]) or {}, path[1:], value)}


def each_container(
    spec: Object, change: Callable[[Object], Object], where: Callable[[Object], bool] = lambda _: True
) -> Object:
    """Returns the spec with each container that `where` selects replaced by the result of `change`."""
    lists = {
        name: [change(container) if where(container) else container for container in spec[name]]
        for name in ("initContainers", "containers")
        if spec.get(name)
    }
    return {**spec, **lists}


def without_key(document: Object, path: Path, key: str) -> Object:
    """Returns `document` without `key` in the object at `path`. Also removes this object if it becomes empty."""
    found = at(document, path)
    if key not in found:
        return document
    left = {name: value for name, value in found.items() if name != key}
    return replaced(document, path, left) if left else without_key(document, path[:-1], path[-1])


def _without_fraction(container: Object) -> Object:
    if FRACTION not in limits(container) and FRACTION not in requests(container):
        return container
    return _with_amounts(container, lambda amounts: {k: v for k, v in amounts.items() if k != FRACTION})


def _converted(container: Object, count: int) -> Object:
    limit, request = limits(container).get(FRACTION), requests(container).get(FRACTION)
    if limit is None and request is None:
        return container
    name = container.get("name")
    if limit is None:
        raise PodError(
            f"container {name!r}: {FRACTION} is only in requests; write it in limits, the request follows; "
            f"if a LimitRange put it there, write its bounds in {MILLI}"
        )
    if request is not None and parse_quantity(request) != parse_quantity(limit):
        raise PodError(
            f"container {name!r}: {FRACTION} is {_plain(request)} in requests and {_plain(limit)} in limits; a share "
            "is the same in both, so write it in limits only"
        )
    try:
        fraction = parse_fraction(_plain(limit))
    except QuantityError as problem:
        raise PodError(f"container {name!r}: {FRACTION}: {problem}") from None
    # A LimitRange may have set default thousandths next to the fraction before: the author's fraction replaces them.
    milli = {MILLI: _canonical(fraction.total_milli * count)}
    return _with_amounts(container, lambda amounts: {k: v for k, v in amounts.items() if k != FRACTION} | milli)


def _with_amounts(container: Object, change: Callable[[Mapping[str, str]], Mapping[str, str]]) -> Object:
    resources = {k: v for k, v in container["resources"].items() if k not in ("limits", "requests")}
    amounts = {"limits": change(limits(container)), "requests": change(requests(container))}
    return {**container, "resources": resources | {name: values for name, values in amounts.items() if values}}


def _canonical(milli: int) -> str:
    """Returns the quantity in the form in which the API server stores it, for comparison with the stored object."""
    return str(milli) if milli % MILLI_PER_GPU else f"{milli // MILLI_PER_GPU}k"


def _plain(quantity: str) -> str:
    """Returns a quantity as a decimal number, for people: "250m" as "0.25"."""
    return f"{parse_quantity(quantity).normalize():f}"


def withdrawn(old: Object, new: Object, path: Path, manager: str) -> set[str]:
    """Returns the names of the containers whose fraction `manager` removes by this update."""
    gone = _applied(old, path, FRACTION) - _applied(new, path, FRACTION)
    gone |= _managed(old, path, FRACTION, manager, "Apply") - _managed(new, path, FRACTION, manager, "Apply")
    if manager.startswith(HELM):
        gone |= _managed(old, path, FRACTION, manager, "Update")
    return gone


def _applied(document: Object, path: Path, resource: str) -> set[str]:
    """Returns the names of the containers with a limit of `resource` in the manifest of the last client-side apply."""
    text = at(document, ("metadata", "annotations")).get(LAST_APPLIED, "")
    if resource not in text:
        return set()
    try:
        return {str(c.get("name")) for c in containers(at(json.loads(text), path)) if resource in limits(c)}
    except (ValueError, AttributeError):
        return set()  # an annotation may hold any text; this one is not a manifest


def _managed(document: Object, path: Path, resource: str, manager: str, operation: str = "") -> set[str]:
    """Returns the names of the containers whose limit of `resource` is in a record of `manager` with `operation`.

    "" stands for any manager or operation. The API server makes the record before admission: the record has the
    fraction and not the thousandths that the webhook writes.
    """
    return {
        name
        for entry in at(document, ("metadata",)).get("managedFields") or ()
        if manager in ("", entry.get("manager")) and operation in ("", entry.get("operation"))
        for name in containers_set_by(entry, path, resource)
    }


def containers_set_by(entry: Object, path: Path, resource: str) -> Iterator[str]:
    """Yields the names of the containers whose limit of `resource` is in an entry of managedFields."""
    yield from _set_by(at(entry, ("fieldsV1", *(f"f:{key}" for key in path))), resource)


def _set_by(fields: Object, resource: str) -> Iterator[str]:
    for key, container in {**at(fields, ("f:initContainers",)), **at(fields, ("f:containers",))}.items():
        if key.startswith("k:") and f"f:{resource}" in at(container, ("f:resources", "f:limits")):
            yield str(json.loads(key.removeprefix("k:")).get("name"))
