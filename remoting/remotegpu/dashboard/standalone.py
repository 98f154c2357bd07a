"""Builds the page's data for one appliance without a cluster, with leases in place of claims. Pure."""

import datetime
from collections.abc import Iterable, Mapping

from remotegpu.api import snapshot
from remotegpu.api.pools import Amount, GpuStatus
from remotegpu.api.quantities import MILLI_PER_GPU, format_bytes
from remotegpu.dashboard.state import Snapshot
from remotegpu.rpc import pb

_APPLIANCE = "appliance"


def named(inventory: pb.InventoryReply) -> pb.InventoryReply:
    """Returns a copy in which each lease has a claim's name: the client's machine and the first digits of the id."""
    made = pb.InventoryReply()
    made.CopyFrom(inventory)
    for lease in made.leases:
        machine = (lease.client.split() or ["-"])[0].replace("/", "_")
        lease.claim = f"{machine}/{lease.lease_id[:8]}"
    return made


def current(inventory: pb.InventoryReply, machine: str, now: datetime.datetime) -> Snapshot:
    """Returns the snapshot for the page. `inventory` is the result of `named` for the appliance on `machine`."""
    gpus = {gpu.uuid: gpu for gpu in inventory.gpus}
    return Snapshot(
        [_pool(inventory, machine)], {each.claim: _lease(each, gpus, machine, now) for each in inventory.leases}
    )


def _pool(inventory: pb.InventoryReply, machine: str) -> snapshot.Pool:
    broken = [gpu for gpu in inventory.gpus if not gpu.healthy]
    phase, message = "Ready", ""
    if inventory.draining:
        phase, message = "Draining", "it opens no new lease"
    elif len(broken) == len(inventory.gpus):
        phase, message = "NotReady", "no GPU works"
    serving = [] if inventory.draining else [gpu for gpu in inventory.gpus if gpu.healthy]
    appliance: snapshot.Appliance = {
        "name": _APPLIANCE,
        "node": machine,
        "phase": phase,
        "message": message,
        "cordoned": False,
        "gpus": [_gpu(gpu) for gpu in inventory.gpus],
    }
    return {
        "name": machine,
        "backend": inventory.backend,
        "computeMode": inventory.compute_mode,
        "phase": phase,
        "message": message,
        "total": _sum((MILLI_PER_GPU, gpu.shareable_bytes) for gpu in inventory.gpus),
        "free": _sum((MILLI_PER_GPU - _milli(gpu), gpu.shareable_bytes - gpu.leased_bytes) for gpu in serving),
        "schedules": [],
        "appliances": [appliance],
    }


def _gpu(gpu: pb.Gpu) -> dict[str, object]:
    return GpuStatus(
        gpu.uuid,
        gpu.name,
        gpu.total_bytes,
        gpu.shareable_bytes,
        gpu.healthy,
        gpu.health_message,
        allocated_milli=_milli(gpu),
        allocated_memory=gpu.leased_bytes,
    ).to_object()


def _lease(lease: pb.Lease, gpus: Mapping[str, pb.Gpu], machine: str, now: datetime.datetime) -> snapshot.Claim:
    namespace, _, name = lease.claim.partition("/")
    models = {gpus[place.gpu].name for place in lease.places if place.gpu in gpus}
    state = "Suspended" if lease.suspended else "Starting" if lease.arriving else "Allocated"
    created = now - datetime.timedelta(seconds=lease.age_seconds)
    return {
        "namespace": namespace,
        "name": name,
        "pool": machine,
        "mode": "",
        "asks": f"{len(lease.gpus)} x {format_bytes(lease.memory_bytes)}",
        "priority": "",
        "suspendable": False,
        "pods": [],
        "created": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "phase": state,
        "reason": lease.problem or lease.suspended,
        "message": lease.client,
        "position": 0,
        "gpus": f"{len(lease.gpus)} x {' or '.join(sorted(models))}",
        "milli": sum(_part(place.leased_bytes, gpus[place.gpu]) for place in lease.places if place.gpu in gpus),
        "conditions": [],
        "shares": [{"appliance": _APPLIANCE, "gpu": each.gpu, "memory": each.leased_bytes} for each in lease.places],
    }


def _milli(gpu: pb.Gpu) -> int:
    return _part(gpu.leased_bytes, gpu)


def _part(size: int, gpu: pb.Gpu) -> int:
    return size * MILLI_PER_GPU // gpu.shareable_bytes if gpu.shareable_bytes else 0


def _sum(amounts: Iterable[tuple[int, int]]) -> dict[str, object]:
    milli, memory = 0, 0
    for more, bytes_more in amounts:
        milli, memory = milli + more, memory + bytes_more
    return Amount(milli, memory).to_object()
