"""Pure functions that build the JSON of pools and claims. The allocator computes the claims' positions in queues."""

import datetime
from collections.abc import Iterable

from remotegpu.api import snapshot
from remotegpu.api.claims import Allocation, GPUClaim
from remotegpu.api.pools import ApplianceStatus, GPUPool
from remotegpu.api.schedules import Schedule
from remotegpu.dashboard.state import Json, Snapshot
from remotegpu_operator.builders.claims import HOLDING
from remotegpu_operator.claims.why import Objects, State


def current(objects: Objects, now: datetime.datetime) -> Snapshot:
    """Builds the snapshot. `objects` are as for `why.explain`, but pods are not needed."""
    state = State.of(objects)
    positions = _positions(state, now)
    return Snapshot(
        [_pool(pool, now) for pool in sorted(state.pools, key=lambda pool: pool.name)],
        {claim.key: _claim(claim, positions.get(claim.uid, 0)) for claim in state.claims},
    )


def snapshot_of(objects: Objects, now: datetime.datetime) -> snapshot.State:
    """Builds the state for `remotegpu top`; see `remotegpu.api.snapshot.Snapshots`."""
    return current(objects, now).to_object()


def _positions(state: State, now: datetime.datetime) -> dict[str, int]:
    """Returns the position of each waiting claim in its pool's queue, by uid; the first position is 1."""
    lengths: dict[str, int] = {}
    found = {}
    for request in state.allocator(now).waiting():
        found[request.uid] = lengths[request.pool] = lengths.get(request.pool, 0) + 1
    return found


def _pool(pool: GPUPool, now: datetime.datetime) -> snapshot.Pool:
    status = pool.status
    return {
        "name": pool.name,
        "backend": str(pool.spec.backend),
        "computeMode": str(pool.spec.compute_mode),
        "phase": str(status.phase),
        "message": status.message,
        "total": status.total.to_object(),
        "free": status.free.to_object(),
        "schedules": [_schedule(each, now) for each in pool.spec.schedules],
        "appliances": [_appliance(each, pool.spec.cordoned) for each in status.appliances],
    }


def _schedule(schedule: Schedule, now: datetime.datetime) -> Json:
    return {**schedule.to_object(), "active": schedule.covers(now), "problem": schedule.problem}


def _appliance(appliance: ApplianceStatus, cordoned: Iterable[str]) -> snapshot.Appliance:
    return {
        "name": appliance.name,
        "node": appliance.node,
        "phase": str(appliance.phase),
        "message": appliance.message,
        "cordoned": appliance.node in cordoned,
        "gpus": [gpu.to_object() for gpu in appliance.gpus],
    }


def _claim(claim: GPUClaim, position: int) -> snapshot.Claim:
    spec, status = claim.spec, claim.status
    return {
        "namespace": claim.namespace,
        "name": claim.name,
        "pool": spec.pool,
        "mode": str(spec.mode),
        "asks": str(spec.ask),
        "priority": spec.priority_class or spec.priority,
        "suspendable": spec.suspendable,
        "pods": [pod.name for pod in status.consumers] or ([spec.pod.name] if spec.pod else []),
        "created": claim.created,
        "phase": str(status.phase),
        "reason": str(status.reason),
        "message": status.message,
        "position": position,
        "gpus": status.gpus,
        "milli": status.milli,
        "conditions": [each.to_object() for each in status.conditions],
        "shares": [_share(each) for each in status.held] if status.phase in HOLDING else [],
    }


def _share(allocation: Allocation) -> snapshot.Share:
    return {"appliance": allocation.appliance, "gpu": allocation.gpu, "memory": allocation.memory}
