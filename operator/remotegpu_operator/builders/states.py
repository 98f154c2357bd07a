"""Pure functions that derive an appliance's status from its StatefulSet, pod and report, and the status of a pool."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from remotegpu.api import addresses
from remotegpu.api.conditions import Condition, ConditionStatus, with_condition
from remotegpu.api.kubernetes import APPLIANCE_LABEL, AUDIENCE, CONTROL_PORT, appliance_audience, server_name
from remotegpu.api.lines import one_line
from remotegpu.api.modes import Landlock
from remotegpu.api.pools import (
    NO_ROOM_FOR_SESSIONS,
    AppliancePhase,
    ApplianceStatus,
    EnvironmentStatus,
    GPUPool,
    GpuStatus,
    PoolPhase,
    PoolStatus,
)
from remotegpu.api.schedules import PackStatus
from remotegpu_operator.allocation import Capacity
from remotegpu_operator.builders import packing
from remotegpu_operator.builders.memory import limited

Object = dict[str, Any]

REVISION_LABEL: Final = "controller-revision-hash"


@dataclass(frozen=True, slots=True)
class Seen:
    """The known state of one appliance.

    `gpus`, `environments` and `driver` are from its last report. `answers` is true if it has reported recently;
    otherwise `problem` is why not.
    """

    name: str
    node: str
    pod: Object | None
    gpus: tuple[GpuStatus, ...]
    answers: bool
    environments: tuple[EnvironmentStatus, ...] = ()
    driver: int = 0
    problem: str = ""
    # The reason why the appliance takes no new claims; empty if it takes them.
    draining: str = ""
    # The appliance's message why it opens no session; empty if it opens sessions.
    full: str = ""
    # True if the appliance has answered before: without an answer now it is Lost, and not Starting.
    known: bool = False


def pod_address(pod: Object | None) -> str:
    """Returns the appliance's address and port, even while its pod is being deleted; empty if its pod does not run."""
    status = (pod or {}).get("status") or {}
    ip = status.get("podIP") or ""
    if not ip or any("running" not in (each.get("state") or {}) for each in status.get("containerStatuses") or []):
        return ""
    return addresses.joined(ip, CONTROL_PORT)


def audience(pod: Object) -> str:
    """Returns the audience that the operator's token for this appliance must have.

    An appliance of the previous release has no option `--pool`, and accepts the audience common to all appliances.
    """
    containers = pod["spec"].get("containers") or [{}]
    known = "--pool" in (containers[0].get("args") or ())
    return appliance_audience(pod["metadata"]["labels"][APPLIANCE_LABEL]) if known else AUDIENCE


def incarnation(pod: Object) -> str:
    """Returns an id for one run of the appliance. After a restart the appliance has another id and no sessions."""
    restarts = sum(each["restartCount"] for each in (pod.get("status") or {}).get("containerStatuses") or [])
    return f"{pod['metadata']['uid']}/{restarts}"


def outdated(stateful_set: Object, pod: Object | None) -> bool:
    """Whether the pod was created from an older pod template of the StatefulSet."""
    status = stateful_set.get("status") or {}
    if pod is None or status.get("observedGeneration", 0) < stateful_set["metadata"]["generation"]:
        return False
    revision = (pod["metadata"].get("labels") or {}).get(REVISION_LABEL)
    return bool(status.get("updateRevision")) and revision != status["updateRevision"]


def appliance_status(seen: Seen) -> ApplianceStatus:
    address = pod_address(seen.pod)
    phase, reason, message = _phase(seen, address)
    containers = ((seen.pod or {}).get("spec") or {}).get("containers") or [{}]
    return ApplianceStatus(
        name=seen.name,
        node=seen.node,
        phase=phase,
        reason=reason,
        message=message,
        address=address,
        server_name=server_name(seen.name),
        image=containers[0].get("image", ""),
        gpus=seen.gpus,
        environments=seen.environments,
        driver=seen.driver,
    )


def pool_status(
    pool: GPUPool,
    capacity: Capacity,
    renewal: str,
    now: str,
    limits: Mapping[str, int | None] | None = None,
    pack: PackStatus | None = None,
) -> PoolStatus:
    """Builds a pool's status.

    `renewal` is why certificates cannot be renewed; empty if they can. `limits` has the appliances' memory limits in
    bytes by node, as for `memory.limited`. `pack` is the last packing.
    """
    phase, reason, message = _pool_phase(capacity.appliances)
    mixed = capacity.mixed_memory
    conditions = with_condition(
        pool.status.conditions,
        Condition(
            "Ready",
            "True" if phase in {PoolPhase.READY, PoolPhase.DEGRADED} else "False",
            reason,
            message,
            now,
            pool.generation,
        ),
    )
    conditions = with_condition(
        conditions,
        Condition(
            "MixedMemory",
            "True" if mixed else "False",
            "MixedMemory" if mixed else "OneSize",
            mixed or "all GPUs of the pool have one size of memory",
            now,
            pool.generation,
        ),
    )
    conditions = with_condition(
        conditions,
        Condition(
            "CertificatesRenewed",
            "False" if renewal else "True",
            "RenewalFailed" if renewal else "Renewed",
            renewal[:1024] or "certificates are renewed when a third of their life is left",
            now,
            pool.generation,
        ),
    )
    conditions = with_condition(conditions, _landlock(pool, now))
    conditions = with_condition(conditions, limited(pool, limits or {}, now))
    if pool.spec.schedules:
        conditions = with_condition(conditions, _schedules(pool, now))
    if pack is not None or any(packing.problem(pool)):
        conditions = with_condition(conditions, packing.condition(pool, pack or PackStatus(), now))
    else:
        conditions = tuple(each for each in conditions if each.type != "Packed")
    return PoolStatus(
        phase=phase,
        reason=reason,
        message=message,
        conditions=conditions,
        total=capacity.total,
        allocated=capacity.allocated,
        free=capacity.free,
        appliances=capacity.appliances,
        observed_generation=pool.generation,
        landlock=pool.landlock,
        pack=pack,
    )


def _schedules(pool: GPUPool, now: str) -> Condition:
    problems = "; ".join(filter(None, (each.problem for each in pool.spec.schedules)))[:1024]
    if problems:
        return Condition("SchedulesUnderstood", "False", "NoSuchTimeZone", problems, now, pool.generation)
    return Condition("SchedulesUnderstood", "True", "Understood", "all have a time zone", now, pool.generation)


def _landlock(pool: GPUPool, now: str) -> Condition:
    status: ConditionStatus
    if pool.landlock is Landlock.REQUIRE:
        status, reason, message = "True", "Required", "appliances start only on nodes whose kernel has Landlock"
    elif pool.spec.landlock is Landlock.WARN:
        status, reason = "False", "Allowed"
        message = "the pool lets sessions do without Landlock; set landlock: Require where all nodes have Linux 5.13"
    else:
        status, reason = "False", "OlderPool"
        message = (
            "the pool is older than this rule, and its sessions may do without Landlock; the next release requires it: "
            "set landlock: Require, or landlock: Warn to stay with this"
        )
    return Condition("LandlockRequired", status, reason, message, now, pool.generation)


def _phase(seen: Seen, address: str) -> tuple[AppliancePhase, str, str]:
    if seen.answers and address:
        if seen.pod is not None and "deletionTimestamp" in seen.pod["metadata"]:
            return AppliancePhase.DRAINING, STOPPING, _DRAINING[STOPPING]
        if seen.draining:
            return (
                AppliancePhase.DRAINING,
                seen.draining,
                _DRAINING.get(seen.draining, "the appliance takes no new claims"),
            )
        if seen.full:
            return (
                AppliancePhase.READY,
                NO_ROOM_FOR_SESSIONS,
                f"it takes no new claims: {one_line(seen.full, _MOST_MESSAGE)}",
            )
        return AppliancePhase.READY, "Ready", "the appliance answers"
    why, what = _missing(seen.pod)
    if seen.known:
        return AppliancePhase.LOST, why, what if not address else seen.problem or what
    return AppliancePhase.STARTING, why, seen.problem if address and seen.problem else what


_MOST_MESSAGE: Final = 500
UNWANTED: Final = "NotSelected"
OUTDATED: Final = "NewTemplate"
STOPPING: Final = "Stopping"
CORDONED: Final = "Cordoned"
_DRAINING: Final = {
    UNWANTED: "the pool selects this node no more: the appliance goes when no claim is on it",
    OUTDATED: "the pool's appliances changed: this one is replaced when no claim is on it",
    CORDONED: "the pool's spec.cordoned names this node: no new claims, and movable ones leave",
    STOPPING: "the appliance was asked to stop: sessions may finish",
}


def _missing(pod: Object | None) -> tuple[str, str]:
    """Returns a reason and a message why the appliance does not answer, from the state of its pod."""
    if pod is None:
        return "NoPod", "the appliance has no pod: see `kubectl describe statefulset`"
    if "deletionTimestamp" in pod["metadata"]:
        return "PodDeleted", "the appliance's pod is being deleted"
    status = pod.get("status") or {}
    for container in status.get("containerStatuses") or []:
        for state in (container.get("state") or {}).values():
            if state.get("reason") and state["reason"] != "Completed":
                return state["reason"], state.get("message") or f"the container is {state['reason']}"
    for condition in status.get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return condition.get("reason") or "Unschedulable", condition.get("message") or "the pod is not scheduled"
    return "NoAnswer", "the appliance does not answer yet"


def _pool_phase(appliances: Sequence[ApplianceStatus]) -> tuple[PoolPhase, str, str]:
    if not appliances:
        message = "no node is chosen: label nodes as in nodeSelector, or correct it; with backend cuda they need GPUs"
        return PoolPhase.NOT_READY, "NoNodes", message
    ready = [each for each in appliances if each.phase is AppliancePhase.READY]
    if len(ready) == len(appliances):
        return PoolPhase.READY, "Ready", f"{len(ready)} of {len(ready)} appliances are ready"
    other = next(each for each in appliances if each.phase is not AppliancePhase.READY)
    message = (
        f"{len(ready)} of {len(appliances)} appliances are ready; {other.name} on node {other.node}: {other.message}"
    )
    if ready:
        return PoolPhase.DEGRADED, f"Appliance{other.phase}", message
    if all(each.phase is AppliancePhase.STARTING for each in appliances):
        return PoolPhase.PENDING, "AppliancesStarting", message
    return PoolPhase.NOT_READY, f"Appliance{other.phase}", message
