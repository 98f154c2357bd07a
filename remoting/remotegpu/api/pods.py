"""Reads a pod's request from its containers' resources and our annotations, for webhook and operator alike.

>>> pod = Pod.of({"spec": {"containers": [{"name": "app", "resources": {"limits": {MILLI: "250"}}}]}})
>>> read_ask(pod).share.milli_per_gpu
250
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, Final, Self

from remotegpu.api.kubernetes import (
    CLAIM_ANNOTATION,
    CLIENT,
    COMPUTE_ANNOTATION,
    COMPUTE_LIMIT_ANNOTATION,
    COUNT_ANNOTATION,
    DEFAULT_POOL,
    FRACTION,
    MEMORY_ANNOTATION,
    MILLI,
    MODEL_ANNOTATION,
    MOVABLE_ANNOTATION,
    OFFLOAD_ANNOTATION,
    POOL_ANNOTATION,
    RESOURCE_PREFIX,
    SPREAD_ANNOTATION,
    SUSPENDABLE_ANNOTATION,
    USER_ANNOTATIONS,
    USER_PREFIX,
)
from remotegpu.api.quantities import (
    MILLI_PER_GPU,
    Ask,
    Compute,
    QuantityError,
    format_milli,
    parse_compute,
    parse_memory,
    parse_quantity,
)

# Parsed JSON or YAML of the API; every member may be missing, since nothing has been validated yet.
Object = Mapping[str, Any]
Path = tuple[str, ...]

MAX_GPUS: Final = 64
LEAST_MEMORY: Final = 2 << 20
MOST_MEMORY: Final = 64 << 40
RESOURCES: Final = (FRACTION, MILLI, CLIENT)
OPT_OUT: Final = f"a container that writes {MILLI}: 0 gets no default of a LimitRange"
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


class PodError(ValueError):
    """An invalid request of a pod. The message is one sentence for the author of the pod."""


@dataclass(frozen=True, slots=True)
class PodAsk:
    """A pod's request: either the name of a claim, or a share of its own."""

    claim: str = ""
    share: Ask | None = None  # None: the claim's share
    pool: str = DEFAULT_POOL
    model: str = ""
    spread: bool = False
    suspendable: bool = False
    movable: bool = False
    # The ConfigMap that names the parts that run in an acceptor; empty: the programs of the pod use CUDA.
    offload: str = ""


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


@dataclass(slots=True)
class Container:
    """A container of a pod. Changes of `limits` and `requests` are written by `written`."""

    # All fields of the container. Changes replace values, and never change a value in place.
    body: dict[str, Any]
    limits: dict[str, str]
    requests: dict[str, str]

    @classmethod
    def of(cls, container: Object) -> Self:
        resources = container.get("resources") or {}
        return cls(dict(container), dict(resources.get("limits") or {}), dict(resources.get("requests") or {}))

    @property
    def name(self) -> Any:
        return self.body.get("name")

    def amounts(self, resource: str) -> list[str]:
        """Returns the amounts of `resource` in limits and requests; those that are there."""
        return [found[resource] for found in (self.limits, self.requests) if resource in found]

    def drop(self, resource: str) -> None:
        for amounts in (self.limits, self.requests):
            amounts.pop(resource, None)

    def written(self) -> Object:
        before = Container.of(self.body)
        if (self.limits, self.requests) == (before.limits, before.requests):
            return self.body
        others = {k: v for k, v in (self.body.get("resources") or {}).items() if k not in ("limits", "requests")}
        amounts = {"limits": self.limits, "requests": self.requests}
        return {**self.body, "resources": others | {name: found for name, found in amounts.items() if found}}


@dataclass(slots=True)
class Pod:
    """A pod or pod template: read once by `of`, then changed in place, and written once by `write`."""

    annotations: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    init_containers: list[Container] = field(default_factory=list)
    main_containers: list[Container] = field(default_factory=list)
    # The spec's fields. Changes replace values, and never change a value in place.
    spec: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, document: Object, path: Path = ("spec",)) -> Self:
        """Reads the pod whose spec is at `path` of `document`. Ephemeral containers cannot have resources."""
        spec, metadata = at(document, path), at(document, (*path[:-1], "metadata"))
        return cls(
            dict(metadata.get("annotations") or {}),
            dict(metadata.get("labels") or {}),
            [Container.of(each) for each in spec.get("initContainers") or ()],
            [Container.of(each) for each in spec.get("containers") or ()],
            dict(spec),
        )

    @property
    def containers(self) -> list[Container]:
        return [*self.init_containers, *self.main_containers]

    def write(self, document: Object, path: Path = ("spec",)) -> Object:
        """Returns a copy of `document` with the changes of this pod. Parts that did not change are shared."""
        lists = {"initContainers": self.init_containers, "containers": self.main_containers}
        spec = {**self.spec, **{name: [each.written() for each in found] for name, found in lists.items() if found}}
        document = replaced(document, path, spec) if spec != at(document, path) else document
        for name, notes in (("annotations", self.annotations), ("labels", self.labels)):
            where = (*path[:-1], "metadata", name)
            if notes != at(document, where):
                document = replaced(document, where, notes) if notes else without_key(document, where[:-1], name)
        return document


def without_key(document: Object, path: Path, key: str) -> Object:
    """Returns `document` without `key` in the object at `path`. Also removes this object if it becomes empty."""
    found = at(document, path)
    if key not in found:
        return document
    left = {name: value for name, value in found.items() if name != key}
    return replaced(document, path, left) if left else without_key(document, path[:-1], path[-1])


def milli_of(container: Container) -> int:
    text = container.limits.get(MILLI, "0")
    value = parse_quantity(text)
    if value < 0 or value != value.to_integral_value():
        raise PodError(
            f"container {container.name!r}: {MILLI}: {text} is no number of thousandths of a GPU; write for "
            f"example {FRACTION}: 0.25, or {MILLI}: 250"
        )
    return int(value)


def effective_milli(pod: Pod) -> int:
    """Returns the pod's thousandths as Kubernetes counts: init containers run one by one, sidecars all the time."""
    sidecars = peak = 0
    for container in pod.init_containers:
        if container.body.get("restartPolicy") == "Always":
            sidecars += milli_of(container)
            peak = max(peak, sidecars)
        else:
            peak = max(peak, sidecars + milli_of(container))
    return max(peak, sidecars + sum(map(milli_of, pod.main_containers)))


def unknown(what: str, key: str, known: Iterable[str]) -> str:
    """Returns the error for an unknown key, with the most similar known key and all known keys."""
    by_name = {each.partition("/")[2]: each for each in known}
    close = [by_name[name] for name in get_close_matches(key.partition("/")[2], by_name, n=1)]
    meant = f" (did you mean {close[0]}?)" if close else ""
    return f"{what} {key} is not known{meant}; known are {', '.join(by_name.values())}"


def count_of(annotations: Mapping[str, str]) -> int:
    text = annotations.get(COUNT_ANNOTATION, "1")
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= MAX_GPUS:
        raise PodError(f"annotation {COUNT_ANNOTATION}: {text!r} is no number of GPUs; write 1 to {MAX_GPUS}")
    return int(text)


def read_ask(pod: Pod) -> PodAsk | None:
    """Reads the request of a pod whose fractions are already thousandths; None if it asks for nothing.

    Raises PodError if the request is invalid.
    """
    _check_names(pod)
    annotations, milli = pod.annotations, effective_milli(pod)
    claim, memory = annotations.get(CLAIM_ANNOTATION), annotations.get(MEMORY_ANNOTATION)
    if claim is not None:
        return _named_claim(claim, annotations, milli)
    if memory is not None and milli:
        raise PodError(
            f"annotation {MEMORY_ANNOTATION} and {_in_milli(milli)} exclude each other: keep one of the two; {OPT_OUT}"
        )
    if memory is None and not milli:
        _refuse_loose_ends(pod)
        return None
    count = count_of(annotations)
    share = _share(milli, count, pod) if memory is None else Ask(count, 0, _memory(memory))
    return PodAsk(
        share=replace(share, compute=_compute(annotations)),
        pool=_name(POOL_ANNOTATION, annotations.get(POOL_ANNOTATION, DEFAULT_POOL), 40),
        model=_model(annotations),
        spread=_spread(annotations),
        suspendable=_yes_or_no(
            annotations, SUSPENDABLE_ANNOTATION, "its share may be given to others, while it waits", "it may not"
        ),
        movable=_yes_or_no(annotations, MOVABLE_ANNOTATION, "its share may move to another appliance", "it may not"),
        offload=_offload(annotations),
    )


def _share(milli: int, count: int, pod: Pod) -> Ask:
    """Divides the thousandths of all containers among the GPUs. Without a count, 2000 are two whole GPUs."""
    counted = COUNT_ANNOTATION in pod.annotations
    _check_milli(milli, count, counted, pod)
    if not counted and milli > MILLI_PER_GPU:
        return Ask(milli // MILLI_PER_GPU)
    return Ask(count, milli // count)


def _check_names(pod: Pod) -> None:
    for key in pod.annotations:
        if key.startswith(USER_PREFIX) and key not in USER_ANNOTATIONS:
            raise PodError(unknown("annotation", key, USER_ANNOTATIONS))
    for container in pod.containers:
        for name in (*container.limits, *container.requests):
            if name.startswith(RESOURCE_PREFIX) and name not in RESOURCES:
                raise PodError(f"container {container.name!r}: {unknown('resource', name, RESOURCES)}")


def _named_claim(claim: str, annotations: Mapping[str, str], milli: int) -> PodAsk:
    if milli:
        raise PodError(
            f"annotation {CLAIM_ANNOTATION} and {_in_milli(milli)} exclude each other: keep one of the two; {OPT_OUT}"
        )
    fit = (CLAIM_ANNOTATION, OFFLOAD_ANNOTATION)
    others = [key for key in USER_ANNOTATIONS if key in annotations and key not in fit]
    if others:
        raise PodError(
            f"annotation {CLAIM_ANNOTATION} excludes {', '.join(others)}: write them as fields of the GPUClaim"
        )
    return PodAsk(claim=_name(CLAIM_ANNOTATION, claim, 253), offload=_offload(annotations))


def _check_milli(milli: int, count: int, counted: bool, pod: Pod) -> None:
    if not counted and milli > MILLI_PER_GPU and milli % MILLI_PER_GPU:
        parts = ", ".join(f"{c.name} {format_milli(milli_of(c))}" for c in pod.containers if milli_of(c))
        raise PodError(
            f"the containers ask for {format_milli(milli)} GPUs together ({parts}): a pod has part of one GPU or a "
            f"whole number of GPUs; change one of them, or add {COUNT_ANNOTATION} for the same part of several GPUs"
        )
    if milli > count * MILLI_PER_GPU and counted:
        raise PodError(
            f"{_in_milli(milli)} is more than the {count} whole GPUs of annotation {COUNT_ANNOTATION}: the fraction is "
            f"of each GPU, at most 1; for whole GPUs leave {COUNT_ANNOTATION} out and write {FRACTION}: {count}"
        )
    if milli % count:
        raise PodError(
            f"{_in_milli(milli)} cannot be split over {count} GPUs in thousandths: {MILLI} is the sum over all GPUs of "
            f"annotation {COUNT_ANNOTATION}"
        )
    if milli > MAX_GPUS * MILLI_PER_GPU:
        raise PodError(f"{format_milli(milli)} GPUs are more than a pod can have; ask for at most {MAX_GPUS}")


def _refuse_loose_ends(pod: Pod) -> None:
    """Raises PodError for settings of a share without an amount: such a pod would run without a GPU."""
    loose = [f"annotation {key}" for key in USER_ANNOTATIONS if key in pod.annotations]
    loose += [f"{CLIENT} of container {c.name!r}" for c in pod.containers if CLIENT in c.limits]
    if loose:
        raise PodError(
            f"{loose[0]} says nothing about how much: add a limit such as {FRACTION}: 0.25 to a container, or "
            f"annotation {MEMORY_ANNOTATION} or {CLAIM_ANNOTATION} to the pod"
        )


def _in_milli(milli: int) -> str:
    return f"{MILLI}: {milli} ({format_milli(milli)} GPUs)"


def _name(key: str, text: str, most: int) -> str:
    if len(text) > most or not _NAME.fullmatch(text):
        raise PodError(f"annotation {key}: {text!r} is no name of an object; write the name as kubectl shows it")
    return text


def _offload(annotations: Mapping[str, str]) -> str:
    text = annotations.get(OFFLOAD_ANNOTATION)
    return "" if text is None else _name(OFFLOAD_ANNOTATION, text, 253)


def _model(annotations: Mapping[str, str]) -> str:
    text = annotations.get(MODEL_ANNOTATION)
    if text is None:
        return ""
    if not 1 <= len(text) <= 64:
        raise PodError(f"annotation {MODEL_ANNOTATION}: {text!r} is no part of a GPU's name; write for example A100")
    return text


def _memory(text: str) -> int:
    try:
        memory = parse_memory(text)
    except QuantityError as problem:
        raise PodError(f"annotation {MEMORY_ANNOTATION}: {problem}") from None
    if not LEAST_MEMORY <= memory <= MOST_MEMORY:
        raise PodError(f"annotation {MEMORY_ANNOTATION}: {text} is outside 2Mi to 64Ti of each GPU")
    return memory


def _compute(annotations: Mapping[str, str]) -> Compute:
    try:
        return parse_compute(annotations.get(COMPUTE_ANNOTATION), annotations.get(COMPUTE_LIMIT_ANNOTATION))
    except QuantityError as problem:
        raise PodError(f"annotations {COMPUTE_ANNOTATION} and {COMPUTE_LIMIT_ANNOTATION}: {problem}") from None


def _spread(annotations: Mapping[str, str]) -> bool:
    return _yes_or_no(annotations, SPREAD_ANNOTATION, "GPUs of as many appliances as possible", "of as few")


def _yes_or_no(annotations: Mapping[str, str], key: str, yes: str, no: str) -> bool:
    text = annotations.get(key, "false")
    if text not in ("true", "false"):
        raise PodError(f'annotation {key}: {text!r} is neither "true" ({yes}) nor "false" ({no})')
    return text == "true"
