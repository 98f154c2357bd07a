"""Claims of a cluster: lists and describes them, and suspends, resumes or moves one."""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from rich.console import Console

from remotegpu.api.claims import GPUClaim, Phase, Reason, gpus_text
from remotegpu.api.kubernetes import API_VERSION, CLAIMS, POOLS
from remotegpu.api.objects import UNREADABLE, readable
from remotegpu.api.pools import ApplianceStatus, GPUPool
from remotegpu.api.quantities import MILLI_PER_GPU, format_bytes, format_milli
from remotegpu.cli import exits
from remotegpu.cli.cluster.objects import Cluster, Object, RefusedError, Target
from remotegpu.cli.cluster.why import claim_name, next_step, unreadable
from remotegpu.cli.output import add_row, console, json_text, new_table, present, say

_POLL_SECONDS: Final = 0.5
_MOST_EVENTS: Final = 20
# Returns the result of a change: None while it is unknown, "" on success, else the reason of the failure.
Outcome = Callable[[GPUClaim], str | None]


def ls(cluster: Cluster, namespace: str, *, as_json: bool, watch: bool = False) -> None:
    """Lists claims of a namespace (empty: of all), and appliances if the user may read pools. Raises CliError."""
    present(lambda: _listing(cluster, namespace, as_json=as_json), watch=watch)


def _listing(cluster: Cluster, namespace: str, *, as_json: bool) -> str:
    with refusals():
        claims = cluster.list(claims_path(namespace))
    pools: list[Object] = []
    with contextlib.suppress(RefusedError):
        pools = cluster.list(f"/apis/{API_VERSION}/{POOLS}")
    if as_json:
        return json_text({"pools": pools, "claims": claims})
    table = new_table("APPLIANCE", "POOL", "NODE", "PHASE", "GPUS", "FREE", "FREE MEMORY")
    unreadable: list[str] = []
    for pool in readable(GPUPool.from_object, pools, unreadable.append):
        for each in pool.status.appliances:
            add_row(table, each.name, pool.name, each.node, str(each.phase), *_room(each))
    rows = new_table("CLAIM", "POD", "POOL", "ASKS", "PHASE", "REASON", "HAS", "APPLIANCE")
    for claim in sorted(readable(GPUClaim.from_object, claims, unreadable.append), key=lambda claim: claim.key):
        add_row(
            rows, claim.name if namespace else claim.key, claim.spec.pod.name if claim.spec.pod else "-",
            claim.spec.pool, str(claim.spec.ask), str(claim.status.phase), str(claim.status.reason),
            gpus_text(claim.status.allocations), ", ".join(places(claim)) or "-",
        )  # fmt: skip
    out = console()
    with out.capture() as captured:
        if table.row_count:
            out.print(table)
            out.print()
        out.print(rows if rows.row_count else "no claims")
        for line in unreadable:
            say(out, line)
    return captured.get()


def describe(target: Target) -> None:
    with refusals():
        print_story(console(), target.cluster, target.namespace, claim_name(*target))


def print_story(out: Console, cluster: Cluster, namespace: str, name: str) -> None:
    """Prints a claim's details and events. Raises RefusedError."""
    stored = cluster.get(f"{claims_path(namespace)}/{name}")
    events: list[Object] = []
    with contextlib.suppress(RefusedError):
        of_claim = f"involvedObject.uid={stored['metadata']['uid']}"
        events = cluster.list(f"/api/v1/namespaces/{namespace}/events", fields=of_claim)
    for line in _lines(_read(stored)):
        say(out, line)
    table = new_table("EVENT", "LAST SEEN", "TIMES", "MESSAGE")
    for event in sorted(events, key=_last_seen)[-_MOST_EVENTS:]:
        add_row(table, event["reason"], _last_seen(event), str(event.get("count") or 1), event["message"])
    if table.row_count:
        out.print()
        out.print(table)


def suspend(target: Target, *, wait: bool) -> None:
    def outcome(claim: GPUClaim) -> str | None:
        if claim.status.phase is Phase.SUSPENDED:
            return ""
        return claim.status.message if claim.status.reason is Reason.NOT_SUSPENDED else None

    _change(target, {"suspend": True}, "is suspended", outcome, wait=wait)


def resume(target: Target, *, wait: bool) -> None:
    def outcome(claim: GPUClaim) -> str | None:
        return "" if claim.status.phase is Phase.ALLOCATED else None

    _change(target, {"suspend": False}, "has its GPU", outcome, wait=wait)


def migrate(target: Target, to: str, *, wait: bool) -> None:
    def outcome(claim: GPUClaim) -> str | None:
        if claim.status.move is None and places(claim) == [to]:
            return ""
        return claim.status.message if claim.status.reason is Reason.NOT_MOVED else None

    with refusals():
        known = {each.name for each in appliances(target.cluster)}
    if known and to not in known:
        told = f"no pool has an appliance {to!r}; `kubectl remotegpu ls` names them"
        raise exits.CliError(exits.USAGE, told)
    _change(target, {"appliance": to}, f"is on {to}", outcome, wait=wait)


def names(before: Sequence[str]) -> list[str]:
    """Returns completions for the argument after `before` of `kubectl remotegpu`; none without a cluster."""
    options = dict(itertools.pairwise(before))
    try:
        cluster = Cluster(None, options.get("--context", ""))
        namespace = options.get("-n") or options.get("--namespace") or cluster.namespace
        if before[-1] == "--to":
            return [each.name for each in appliances(cluster)]
        return pods_or_claims(cluster, namespace, claims="--claim" in before)
    except (exits.CliError, RefusedError):
        return []


def pods_or_claims(cluster: Cluster, namespace: str, *, claims: bool) -> list[str]:
    """Returns the names of claims, or of pods that have a claim of their own. Raises RefusedError."""
    found = readable(GPUClaim.from_object, cluster.list(claims_path(namespace)))
    if claims:
        return [claim.name for claim in found]
    return [claim.spec.pod.name for claim in found if claim.spec.pod]


def _change(target: Target, spec: dict[str, Any], done: str, outcome: Outcome, *, wait: bool) -> None:
    """Changes the spec of a claim. With `wait`, waits for the operator's success or failure. Raises CliError."""
    out, cluster = console(), target.cluster
    with refusals():
        path = f"{claims_path(target.namespace)}/{claim_name(*target)}"
        asked = _read(cluster.patch(path, {"spec": spec}))
        told = ""
        while wait:
            claim = _read(cluster.get(path))
            if claim.status.observed_generation >= asked.generation:
                if (why := outcome(claim)) == "":
                    say(out, f"{claim.key} {done}")
                    return
                if why is not None:
                    raise exits.CliError(exits.BUSY, f"{claim.key}: {why}")
                if claim.status.message != told:
                    told = claim.status.message
                    say(out, f"{claim.status.reason}: {told}")
            time.sleep(_POLL_SECONDS)
    out.print(f"{asked.key} was told; `kubectl remotegpu describe` says what becomes of it", markup=False)


def _read(stored: Object) -> GPUClaim:
    try:
        return GPUClaim.from_object(stored)
    except UNREADABLE as error:
        raise unreadable(stored["metadata"]["namespace"], stored["metadata"]["name"], error) from None


def _lines(claim: GPUClaim) -> Iterator[str]:
    spec, status = claim.spec, claim.status
    yield f"{claim.key} asks for {spec.ask} from pool {spec.pool}: {status.phase}, {status.reason}"
    if status.message:
        yield f"  why        {status.message}"
    if spec.pod:
        yield f"  made for   pod {spec.pod.name}"
    used = [each.name for each in status.consumers]
    if used:
        yield f"  used by    {', '.join(used)}"
    said = [
        name
        for name, is_so in (
            ("suspendable", spec.suspendable),
            ("movable", spec.movable),
            ("to be suspended", spec.suspend),
            (f"to be on {spec.appliance}", bool(spec.appliance)),
        )
        if is_so
    ]
    if said:
        yield f"  is         {', '.join(said)}"
    for each in status.allocations:
        yield f"  has        {format_bytes(each.memory)} of {each.model} {each.gpu} on {each.appliance} ({each.node})"
    if status.move is not None:
        to = ", ".join(sorted({each.appliance for each in status.move.to}))
        yield f"  moves      from {status.move.source} to {to}"
    for condition in status.conditions:
        since = f" since {condition.last_transition_time}" if condition.last_transition_time else ""
        yield f"  condition  {condition.type} is {condition.status}{since}: {condition.message or condition.reason}"


def _room(appliance: ApplianceStatus) -> tuple[str, str, str]:
    """Returns the columns GPUS, FREE and FREE MEMORY of an appliance."""
    gpus = appliance.gpus
    models = sorted({gpu.model for gpu in gpus})
    free = sum(MILLI_PER_GPU - gpu.allocated_milli for gpu in gpus if gpu.healthy)
    memory = sum(gpu.shareable - gpu.allocated_memory for gpu in gpus if gpu.healthy)
    return f"{len(gpus)} x {', '.join(models)}" if gpus else "-", format_milli(free), format_bytes(memory)


def places(claim: GPUClaim) -> list[str]:
    return sorted({each.appliance for each in claim.status.allocations})


def appliances(cluster: Cluster) -> list[ApplianceStatus]:
    """Returns the appliances of all pools; none if the user may not read pools."""
    try:
        pools = cluster.list(f"/apis/{API_VERSION}/{POOLS}")
    except RefusedError as error:
        if error.status == 403:
            return []
        raise
    return [each for pool in readable(GPUPool.from_object, pools) for each in pool.status.appliances]


def claims_path(namespace: str) -> str:
    return f"/apis/{API_VERSION}/namespaces/{namespace}/{CLAIMS}" if namespace else f"/apis/{API_VERSION}/{CLAIMS}"


def _last_seen(event: Object) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"])


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    try:
        yield
    except RefusedError as error:
        code = exits.UNAVAILABLE if error.status == 0 else exits.DENIED if error.status == 403 else exits.USAGE
        raise exits.CliError(code, next_step(error)) from None
