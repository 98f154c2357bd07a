"""Converts the fractions in pod specs to thousandths, and removes thousandths again when their fraction is removed."""

import json
from collections.abc import Callable, Iterator
from typing import Final

from remotegpu.api.kubernetes import FRACTION, MILLI
from remotegpu.api.pods import Container, Object, Path, Pod, PodError, at, count_of, replaced
from remotegpu.api.quantities import MILLI_PER_GPU, QuantityError, parse_fraction, parse_quantity

# The annotation in which `kubectl apply` stores the last manifest.
LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
# The field manager of Helm, which stores its last manifest elsewhere. Helm sets a fraction in each update while the
# manifest has one. So Helm has removed a fraction if its update sets none, but its record has one.
HELM: Final = "helm"


def asks_by_fraction(pod: Pod) -> bool:
    return any(container.amounts(FRACTION) for container in pod.containers)


def convert(pod: Pod, is_default: Callable[[Container], bool]) -> dict[str, str]:
    """Replaces fractions by thousandths. Returns the thousandths that replaced a fraction, by container.

    `is_default` returns whether a container's fraction is only a default next to its thousandths. Such a fraction is
    removed. Raises PodError if a fraction is invalid.
    """
    converted = {}
    for container in pod.containers:
        if not container.amounts(FRACTION):
            continue
        milli = None if is_default(container) else _milli_of_fraction(container, count_of(pod.annotations))
        container.drop(FRACTION)
        if milli is not None:
            # A LimitRange may have set default thousandths next to the fraction before: the fraction replaces them.
            container.limits[MILLI] = container.requests[MILLI] = milli
            converted[container.name] = milli
    return {str(name): milli for name, milli in converted.items() if name}


def withdraw(pod: Pod, old: Object, new: Object, path: Path, manager: str) -> frozenset[str]:
    """Removes our thousandths for fractions that `manager` removes by this update. Returns those containers' names.

    `pod` is the pod at `path` of `new`. The author's manifest does not have the thousandths that we wrote. So an apply
    without the fraction would not remove them.
    """
    gone = _withdrawn(old, new, path, manager)
    if not gone:
        return gone
    by_hand = _applied(new, path, MILLI) | _managed(new, path, MILLI, manager) | _managed(new, path, MILLI, "", "Apply")
    before = {container.name: container for container in Pod.of(old, path).containers}
    for container in pod.containers:
        limit, was = container.limits.get(MILLI), before.get(container.name, Container({}, {}, {}))
        if container.name not in gone or FRACTION in container.limits:
            continue
        if limit is None or (limit == was.limits.get(MILLI) and container.name not in by_hand):
            container.drop(MILLI)
        elif container.requests.get(MILLI) == was.requests.get(MILLI):
            # The author now sets thousandths in limits, but the request still has the thousandths that we wrote.
            container.requests[MILLI] = limit
    return gone


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


def _milli_of_fraction(container: Container, count: int) -> str:
    """Returns the thousandths for the container's fraction of each of `count` GPUs."""
    limit, request = container.limits.get(FRACTION), container.requests.get(FRACTION)
    if limit is None:
        raise PodError(
            f"container {container.name!r}: {FRACTION} is only in requests; write it in limits, the request follows; "
            f"if a LimitRange put it there, write its bounds in {MILLI}"
        )
    if request is not None and parse_quantity(request) != parse_quantity(limit):
        raise PodError(
            f"container {container.name!r}: {FRACTION} is {_plain(request)} in requests and {_plain(limit)} in limits; "
            "a share is the same in both, so write it in limits only"
        )
    try:
        return _canonical(parse_fraction(_plain(limit)).total_milli * count)
    except QuantityError as problem:
        raise PodError(f"container {container.name!r}: {FRACTION}: {problem}") from None


def _canonical(milli: int) -> str:
    """Returns the quantity in the form in which the API server stores it, for comparison with the stored object."""
    return str(milli) if milli % MILLI_PER_GPU else f"{milli // MILLI_PER_GPU}k"


def _plain(quantity: str) -> str:
    """Returns a quantity as a decimal number, for people: "250m" as "0.25"."""
    return f"{parse_quantity(quantity).normalize():f}"


def _withdrawn(old: Object, new: Object, path: Path, manager: str) -> frozenset[str]:
    gone = _applied(old, path, FRACTION) - _applied(new, path, FRACTION)
    gone |= _managed(old, path, FRACTION, manager, "Apply") - _managed(new, path, FRACTION, manager, "Apply")
    if manager.startswith(HELM):
        gone |= _managed(old, path, FRACTION, manager, "Update")
    return frozenset(gone)


def _applied(document: Object, path: Path, resource: str) -> set[str]:
    """Returns the names of the containers with a limit of `resource` in the manifest of the last client-side apply."""
    text = at(document, ("metadata", "annotations")).get(LAST_APPLIED, "")
    if resource not in text:
        return set()
    try:
        return {str(c.name) for c in Pod.of(json.loads(text), path).containers if resource in c.limits}
    except (ValueError, AttributeError, TypeError):
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
