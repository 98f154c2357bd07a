"""The appliance's GPUs and leases, for `remotegpu ls`, the metrics and the operator."""

import time
from collections.abc import Sequence

from remotegpu.appliance.sessions.returns import in_use
from remotegpu.appliance.sessions.state import Lease
from remotegpu.appliance.shares.allocation import GpuLeases
from remotegpu.appliance.shares.views import PhysicalGpu
from remotegpu.rpc import pb


def leases_now(leases: Sequence[Lease], gpus: Sequence[PhysicalGpu], allocator: GpuLeases) -> list[pb.Lease]:
    return [_lease(lease, gpus, allocator) for lease in leases]


def gpus_now(gpus: Sequence[PhysicalGpu], allocator: GpuLeases, leases: Sequence[pb.Lease]) -> list[pb.Gpu]:
    used = {gpu.uuid_text: 0 for gpu in gpus}
    for lease in leases:
        for place in lease.places:
            used[place.gpu] += place.used_bytes
    return [
        pb.Gpu(
            index=index,
            uuid=gpu.uuid_text,
            name=gpu.name,
            total_bytes=gpu.memory_bytes,
            shareable_bytes=capacity.shareable,
            leased_bytes=capacity.leased,
            used_bytes=used[gpu.uuid_text],
            healthy=not capacity.unhealthy,
            health_message=capacity.unhealthy,
            guaranteed_milli=capacity.guaranteed,
        )
        for index, (gpu, capacity) in enumerate(zip(gpus, allocator.gpus, strict=True))
    ]


def _lease(lease: Lease, gpus: Sequence[PhysicalGpu], allocator: GpuLeases) -> pb.Lease:
    # The thread of the metrics reads this too, so all that can change is copied.
    used = [in_use(lease, device) for device in range(len(lease.quotas))]
    suspended = lease.suspended
    sizes = lease.placement.sizes if suspended is None else suspended.kept
    return pb.Lease(
        lease_id=lease.lease_id,
        client=lease.client,
        gpus=lease.placement.gpus,
        memory_bytes=min(lease.placement.sizes),
        used_bytes=sum(used),
        sessions=len(lease.sessions),
        age_seconds=time.monotonic() - lease.since,
        host_bytes=lease.host_bytes,
        suspended=suspended.reason if suspended else "",
        image_bytes=suspended.bytes if suspended else 0,
        claim=str(lease.claim or ""),
        claim_uid=lease.claim.uid if lease.claim else "",
        problem=lease.problem or lease.resize_problem,
        arriving=lease.arriving,
        compute_limit_milli=lease.placement.compute.limit_milli if allocator.divides_time else 0,
        places=[
            pb.Place(
                gpu=gpus[gpu].uuid_text,
                leased_bytes=size,
                used_bytes=now,
                compute_milli=allocator.guaranteed(gpu, size, lease.placement.compute),
                gpu_nanoseconds=busy.total_nanoseconds,
            )
            for gpu, size, now, busy in zip(lease.placement.gpus, sizes, used, lease.busy, strict=True)
        ],
    )
