"""Interprets GPUClaims for one appliance: turns objects of the API server into leases that should exist. Pure.

It reads only the fields that it needs, so that an operator of another version may write more.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from remotegpu.api.claims import Allocation, Mode, Move, Phase, PodReference, Reason, compute_from_object, lease_id_of
from remotegpu.api.kubernetes import OFFLOAD_ANNOTATION
from remotegpu.api.objects import UNREADABLE
from remotegpu.api.quantities import TIME_AS_MEMORY, Compute, QuantityError


class BadClaimError(Exception):
    """Raised for an invalid claim. The message has the cause."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The part of a claim that is allocated on this appliance."""

    uid: str
    namespace: str
    name: str
    consumers: frozenset[str]  # uids of the pods that may use it
    places: tuple[tuple[str, int], ...]  # GPUs of this appliance, and the bytes on each
    mode: Mode = Mode.DRIVER
    suspended: str = ""  # the reason to suspend it; empty: it runs. `places` may then have reduced bytes
    arrives: bool = False  # it is moving here; the other appliance still has its sessions
    leaves: bool = False  # it is moving to another appliance
    compute: Compute = TIME_AS_MEMORY
    resize: tuple[int, ...] = ()  # the new bytes of its places; empty: no resize
    created: str = ""  # the API server sets it when the object is made, and no client can

    def has_place_of(self, other: "Claim") -> bool:
        """Whether both claims are on the same GPUs. Their sizes may differ."""
        return [gpu for gpu, _ in self.places] == [gpu for gpu, _ in other.places]

    @property
    def turn(self) -> tuple[str, str, str]:
        """The sort key of claims: creation time, name. Creation times are whole seconds."""
        return self.created, self.namespace, self.name

    @property
    def sizes(self) -> tuple[int, ...]:
        """The bytes on each GPU that the lease should have."""
        return self.resize or tuple(size for _, size in self.places)

    @property
    def users(self) -> "Users":
        return Users(self.namespace, self.consumers)

    @property
    def lease_id(self) -> str:
        return lease_id_of(self.uid)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def claim_of_appliance(claim: Mapping[str, Any], appliance: str) -> Claim | None:
    """Returns the part of a GPUClaim that this appliance should serve; None if there is no such part.

    Raises BadClaimError for any invalid content.
    """
    try:
        return _part_of(claim, appliance)
    except UNREADABLE as error:
        raise BadClaimError(f"its status cannot be read: {error!r}") from None


def _part_of(claim: Mapping[str, Any], appliance: str) -> Claim | None:
    metadata, status = claim["metadata"], claim.get("status") or {}
    phase = status.get("phase")
    if phase not in (Phase.ALLOCATED, Phase.SUSPENDED) or metadata.get("deletionTimestamp"):
        return None
    # Only the status counts, not the spec: the operator decides about a suspension.
    ends = phase == Phase.SUSPENDED or status.get("reason") in (Reason.SUSPENDING, Reason.NOT_SUSPENDED)
    allocations = tuple(map(Allocation.from_object, status.get("allocations") or ()))
    move = None if status.get("move") is None else Move.from_object(status["move"])
    arrives = move is not None and any(each.appliance == appliance for each in move.to)
    if move is not None and arrives:
        allocations = move.to
    places = tuple((each.gpu, each.memory) for each in allocations if each.appliance == appliance)
    resize = map(Allocation.from_object, status.get("resize") or ())
    sizes = tuple(each.memory for each in resize if each.appliance == appliance)
    consumers = _consumers(status)
    if len({gpu for gpu, _ in places}) < len(places):
        raise BadClaimError("its status names a GPU twice")
    if not places:
        return None
    # A claim that moves here is suspended only after its arrival.
    suspended = f"as GPUClaim {metadata['name']} says" if ends and not arrives else ""
    return Claim(
        metadata["uid"],
        metadata["namespace"],
        metadata["name"],
        consumers,
        places,
        _mode(claim),
        suspended,
        arrives=arrives,
        leaves=move is not None and move.source == appliance,
        resize=sizes,
        compute=_compute(claim),
        created=str(metadata.get("creationTimestamp") or ""),
    )


@dataclass(frozen=True, slots=True)
class Users:
    """The pods that may use a claim, on any appliance."""

    namespace: str
    pods: frozenset[str]  # uids


def _consumers(status: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(PodReference.from_object(pod).uid for pod in status.get("consumers") or ())


def users_of_claim(claim: Mapping[str, Any]) -> Users | None:
    """Returns the users of a claim; None if they cannot be read."""
    try:
        return Users(claim["metadata"]["namespace"], _consumers(claim.get("status") or {}))
    except UNREADABLE:
        return None


def refusal_of_mode(claim: Claim | None, *, offload: bool) -> str:
    """Returns an error if a claim's mode does not allow this kind of session; else empty, also without a claim."""
    if claim is None or offload is (claim.mode is Mode.OFFLOAD):
        return ""
    if offload:
        return (
            f"claim {claim} has mode driver, which serves CUDA and runs no Python: add annotation {OFFLOAD_ANNOTATION} "
            "to the pod, or make the GPUClaim with mode: offload"
        )
    return (
        f"claim {claim} has mode offload, which runs Python and serves no CUDA: leave annotation {OFFLOAD_ANNOTATION} "
        "out of the pod, or make the GPUClaim with mode: driver"
    )


def _compute(claim: Mapping[str, Any]) -> Compute:
    try:
        return compute_from_object(claim.get("spec") or {})
    except QuantityError as error:
        raise BadClaimError(f"its spec cannot be read: {error}") from None


def _mode(claim: Mapping[str, Any]) -> Mode:
    try:
        return Mode((claim.get("spec") or {}).get("mode", Mode.DRIVER))
    except ValueError as error:
        raise BadClaimError(f"its spec cannot be read: {error}") from None
