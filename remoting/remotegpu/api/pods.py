"""Reads a pod's request from its containers' resources and our annotations, for webhook and operator alike."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, Final

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


def containers(spec: Object) -> Iterator[Object]:
    """Yields init containers and containers. Ephemeral containers are left out: they cannot have resources."""
    yield from spec.get("initContainers") or ()
    yield from spec.get("containers") or ()


def limits(container: Object) -> Mapping[str, str]:
    return (container.get("resources") or {}).get("limits") or {}


def requests(container: Object) -> Mapping[str, str]:
    return (container.get("resources") or {}).get("requests") or {}


def milli_of(container: Object) -> int:
    text = limits(container).get(MILLI, "0")
    value = parse_quantity(text)
    if value < 0 or value != value.to_integral_value():
        raise PodError(
            f"container {container.get('name')!r}: {MILLI}: {text} is no number of thousandths of a GPU; write for "
            f"example {FRACTION}: 0.25, or {MILLI}: 250"
        )
    return int(value)


def effective_milli(spec: Object) -> int:
    """Returns the pod's thousandths as Kubernetes counts: init containers run one by one, sidecars all the time."""
    sidecars = peak = 0
    for container in spec.get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            sidecars += milli_of(container)
            peak = max(peak, sidecars)
        else:
            peak = max(peak, sidecars + milli_of(container))
    return max(peak, sidecars + sum(milli_of(container) for container in spec.get("containers") or ()))


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


def read_ask(annotations: Mapping[str, str], spec: Object) -> PodAsk | None:
    """Reads the request of a pod whose fractions are already thousandths; None if it asks for nothing.

    Raises PodError if the request is invalid.
    """
    _check_names(annotations, spec)
    milli = effective_milli(spec)
    claim, memory = annotations.get(CLAIM_ANNOTATION), annotations.get(MEMORY_ANNOTATION)
    if claim is not None:
        return _named_claim(claim, annotations, milli)
    if memory is not None and milli:
        raise PodError(
            f"annotation {MEMORY_ANNOTATION} and {_in_milli(milli)} exclude each other: keep one of the two; {OPT_OUT}"
        )
    if memory is None and not milli:
        _refuse_loose_ends(annotations, spec)
        return None
    count = count_of(annotations)
    share = _share(milli, count, annotations, spec) if memory is None else Ask(count, 0, _memory(memory))
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


def _share(milli: int, count: int, annotations: Mapping[str, str], spec: Object) -> Ask:
    """Divides the thousandths of all containers among the GPUs. Without a count, 2000 are two whole GPUs."""
    counted = COUNT_ANNOTATION in annotations
    _check_milli(milli, count, counted, spec)
    if not counted and milli > MILLI_PER_GPU:
        return Ask(milli // MILLI_PER_GPU)
    return Ask(count, milli // count)


def _check_names(annotations: Mapping[str, str], spec: Object) -> None:
    for key in annotations:
        if key.startswith(USER_PREFIX) and key not in USER_ANNOTATIONS:
            raise PodError(unknown("annotation", key, USER_ANNOTATIONS))
    for container in containers(spec):
        for name in (*limits(container), *requests(container)):
            if name.startswith(RESOURCE_PREFIX) and name not in RESOURCES:
                raise PodError(f"container {container.get('name')!r}: {unknown('resource', name, RESOURCES)}")


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


def _check_milli(milli: int, count: int, counted: bool, spec: Object) -> None:
    if not counted and milli > MILLI_PER_GPU and milli % MILLI_PER_GPU:
        parts = ", ".join(f"{c.get('name')} {format_milli(milli_of(c))}" for c in containers(spec) if milli_of(c))
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


def _refuse_loose_ends(annotations: Mapping[str, str], spec: Object) -> None:
    """Raises PodError for settings of a share without an amount: such a pod would run without a GPU."""
    loose = [f"annotation {key}" for key in USER_ANNOTATIONS if key in annotations]
    loose += [f"{CLIENT} of container {c.get('name')!r}" for c in containers(spec) if CLIENT in limits(c)]
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
