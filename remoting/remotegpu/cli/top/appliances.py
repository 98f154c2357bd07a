"""A source for `remotegpu top` that reads GPUs and leases from appliances."""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from remotegpu.api.failures import ApplianceError
from remotegpu.api.quantities import format_bytes
from remotegpu.cli.output import age
from remotegpu.cli.show import describe, gpu_state, gpu_time, inventories, lease_state
from remotegpu.cli.top.view import Cell, Row, Table, View, ago, amount, bar, lost, memory, percent, words
from remotegpu.rpc import pb
from remotegpu.rpc.client import Access, parse_endpoint
from remotegpu.rpc.load import Busy, busy, busy_of

# The number of readings to average over. GPU time is reported at the end of a turn, so a single second varies too much.
_KEPT: Final = 5


@dataclass(frozen=True, slots=True)
class Reading:
    endpoint: str
    inventory: pb.InventoryReply
    at: float
    problem: str = ""  # the reason why there is no newer reading
    busy: Busy = field(default_factory=dict)  # used parts of GPU time since an older reading


@dataclass(frozen=True, slots=True)
class ApplianceSnapshot:
    readings: tuple[Reading, ...]

    def view(self, now: float) -> View:
        gpus = [(reading, gpu) for reading in self.readings for gpu in reading.inventory.gpus]
        leases = [(reading, lease) for reading in self.readings for lease in reading.inventory.leases]
        free = sum(1 - gpu.leased_bytes / gpu.shareable_bytes for _, gpu in gpus if gpu.healthy and gpu.shareable_bytes)
        return View(
            f"{', '.join(each.endpoint for each in self.readings)}: GPUs free: {free:.2f} of {len(gpus)}, "
            f"leases: {len(leases)}, sessions: {sum(lease.sessions for _, lease in leases)}",
            (
                Table(
                    "GPUs",
                    ("APPLIANCE", "GPU", "NAME", "SHARES", "GIVEN", "OF", "USED", "BUSY", "STATE"),
                    tuple(_gpu_row(reading, gpu) for reading, gpu in gpus),
                ),
                Table(
                    "Leases",
                    ("LEASE", "CLIENT", "APPLIANCE", "GPUS", "EACH", "USED", "SESSIONS", "BUSY", "AGE", "STATE"),
                    tuple(_lease_row(reading, lease) for reading, lease in leases),
                ),
            ),
            tuple(lost(each.endpoint, now - each.at, each.problem) for each in self.readings if each.problem),
        )

    def to_object(self) -> dict[str, Any]:
        return {"appliances": [describe(each.endpoint, each.inventory) for each in self.readings]}


class Appliances:
    """A source that reads GPUs and leases from appliances. If an appliance fails, `read` returns its last reading.

    Raises ApplianceError if an appliance fails before its first reading.
    """

    def __init__(self, endpoints: Sequence[str], access: Access) -> None:
        self._access = access
        self._kept = {str(parse_endpoint(each)): deque[Reading](maxlen=_KEPT) for each in endpoints}

    def read(self) -> ApplianceSnapshot:
        return ApplianceSnapshot(tuple(self._read(endpoint, kept) for endpoint, kept in self._kept.items()))

    def story(self, _key: str) -> Sequence[str]:
        return ()

    def _read(self, endpoint: str, kept: deque[Reading]) -> Reading:
        try:
            ((_, inventory),) = inventories([endpoint], self._access)
        except ApplianceError as error:
            if not kept:
                raise
            return replace(kept[-1], problem=str(error), busy={})
        now = time.time()
        lately = busy(kept[0].inventory, inventory, now - kept[0].at) if kept else {}
        kept.append(Reading(endpoint, inventory, now, busy=lately))
        return kept[-1]


def _gpu_row(reading: Reading, gpu: pb.Gpu) -> Row:
    shares = [
        (lease, place.leased_bytes)
        for lease in reading.inventory.leases
        for place in lease.places
        if place.gpu == gpu.uuid
    ]
    # For a user who may not see all leases: the sum of the others.
    others = gpu.leased_bytes - sum(size for _, size in shares)
    bars = bar(gpu.shareable_bytes, [size for _, size in shares], others)
    state = gpu_state(reading.inventory, gpu)
    return Row(
        f"{reading.endpoint} {gpu.uuid}",
        (
            words(reading.endpoint),
            amount(gpu.index),
            words(gpu.name),
            Cell(bars, gpu.leased_bytes / (gpu.shareable_bytes or 1)),
            memory(gpu.leased_bytes),
            memory(gpu.shareable_bytes),
            memory(gpu.used_bytes),
            percent(busy_of(reading.busy, gpu=gpu.uuid)),
            words(state),
        ),
        (
            f"GPU {gpu.index} of {reading.endpoint}: {gpu.name}, {state}",
            f"  uuid       {gpu.uuid}",
            f"  memory     {format_bytes(gpu.total_bytes)}, of which {format_bytes(gpu.shareable_bytes)} can be given",
            f"  given      {format_bytes(gpu.leased_bytes)}, of which sessions use {format_bytes(gpu.used_bytes)}",
            *(f"  has        {format_bytes(size)}: {lease.lease_id[:8]} {_who(lease)}" for lease, size in shares),
            *(
                [f"  others     {format_bytes(others)}: leases that you may not see, or that are ending"]
                if others > 0
                else []
            ),
        ),
    )


def _lease_row(reading: Reading, lease: pb.Lease) -> Row:
    return Row(
        # The key has the endpoint, since a lease that moves is on two appliances for some time.
        f"{reading.endpoint} {lease.lease_id}",
        (
            words(lease.lease_id[:8]),
            words(_who(lease)),
            words(reading.endpoint),
            words(",".join(map(str, lease.gpus))),
            memory(lease.memory_bytes),
            memory(lease.used_bytes),
            amount(lease.sessions),
            percent(busy_of(reading.busy, lease=lease.lease_id)),
            ago(lease.age_seconds),
            words(lease_state(lease)),
        ),
        tuple(_lease_story(reading, lease)),
    )


def _lease_story(reading: Reading, lease: pb.Lease) -> Iterator[str]:
    yield f"lease {lease.lease_id} on {reading.endpoint}: {lease_state(lease)}, for {age(lease.age_seconds)}"
    yield f"  client     {lease.client or '-'}"
    if lease.claim:
        yield f"  claim      {lease.claim}"
    for index, place in zip(lease.gpus, lease.places, strict=False):
        yield (
            f"  has        {format_bytes(place.leased_bytes)} of GPU {index} ({place.gpu}), uses "
            f"{format_bytes(place.used_bytes)}"
        )
    yield f"  sessions   {lease.sessions}, with {format_bytes(lease.host_bytes)} of the appliance's own memory"
    if reading.inventory.compute_mode == "turns":
        yield f"  GPU time   {gpu_time(lease)}"
    if lease.suspended:
        yield f"  saved      {format_bytes(lease.image_bytes)}"
    if lease.arriving:
        yield "  arrives    from another appliance"
    if lease.problem:
        yield f"  problem    {lease.problem}"


def _who(lease: pb.Lease) -> str:
    return lease.claim or lease.client
