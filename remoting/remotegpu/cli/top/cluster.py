"""A source for `remotegpu top` that reads a cluster: pools, their GPUs, and claims."""

import datetime
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from rich.console import Console

from remotegpu import extensions
from remotegpu.api.pools import Amount, GpuStatus
from remotegpu.api.quantities import format_bytes, format_milli
from remotegpu.api.snapshot import Appliance, Claim, Pool, State
from remotegpu.cli import exits
from remotegpu.cli.cluster.claims import claims_path, print_story, refusals
from remotegpu.cli.cluster.objects import Cluster, Object, RefusedError
from remotegpu.cli.cluster.why import LISTS, next_step, of_claim, waiting
from remotegpu.cli.output import say
from remotegpu.cli.top.view import Cell, Row, Table, View, ago, amount, bar, lost, memory, words

# The kinds of objects that determine the queues.
_DECIDE: Final = ("gpupools", "gpuclaims", "resourcequotas", "priorityclasses")
_FORBIDDEN: Final = 403
# The key, the claim and its bytes for each share, by appliance and GPU.
_Shares = Mapping[tuple[str, str], list[tuple[str, Claim, int]]]


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    server: str
    state: State
    at: float
    # Kinds of `_DECIDE` that the user may not list. Without them the places in queues are unknown.
    hidden: tuple[str, ...] = ()
    problem: str = ""  # the reason why there is no newer snapshot

    def view(self, now: float) -> View:
        pools, claims = self.state["pools"], self.state["claims"]
        wait = sum(claim["position"] > 0 for claim in claims.values())
        shares = _shares(claims)
        gpus = [(pool, each, gpu) for pool in pools for each in pool["appliances"] for gpu in each["gpus"] or [{}]]
        return View(
            f"{self.server}: pools: {len(pools)}, claims: {len(claims)}, of which wait: {wait}",
            (
                Table(
                    "Pools",
                    ("POOL", "PHASE", "FREE", "OF", "FREE MEMORY", "WAITING", "MESSAGE"),
                    tuple(_pool_row(pool, claims) for pool in pools),
                ),
                Table(
                    "GPUs",
                    ("POOL", "APPLIANCE", "GPU", "MODEL", "SHARES", "GIVEN", "OF", "STATE"),
                    tuple(_gpu_row(pool, each, gpu, shares) for pool, each, gpu in gpus),
                ),
                Table(
                    "Claims",
                    ("CLAIM", "POD", "POOL", "ASKS", "PHASE", "REASON", "PLACE", "HAS", "AGE"),
                    tuple(self._claim_row(key, claim, now) for key, claim in sorted(claims.items())),
                ),
            ),
            tuple(self._notes(now)),
        )

    def to_object(self) -> dict[str, Any]:
        return {**self.state, "hidden": list(self.hidden)}

    def _notes(self, now: float) -> Iterator[str]:
        if self.problem:
            yield lost(self.server, now - self.at, self.problem)
        if self.hidden:
            yield (
                f"places in queues are not known, since you may not list {', '.join(self.hidden)} of all namespaces: "
                "ask somebody for a role that lets you"
            )

    def _claim_row(self, key: str, claim: Claim, now: float) -> Row:
        place = claim["position"]
        return Row(
            key,
            (
                words(key),
                words(", ".join(claim["pods"]) or "-"),
                words(claim["pool"]),
                words(claim["asks"]),
                words(claim["phase"]),
                words(claim["reason"]),
                # Sorts claims that do not wait after those that wait.
                Cell("-" if not place else "?" if self.hidden else str(place), place or float("inf")),
                words(claim["gpus"]),
                ago(now - datetime.datetime.fromisoformat(claim["created"]).timestamp()),
            ),
            (f"{key}: {claim['phase']}, {claim['reason']}: {claim['message']}",),
        )


class ClusterSource:
    """A source that reads a cluster. The first `read` raises CliError if the cluster cannot be read."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        """Shows claims of `namespace`; empty: of all, or of the context's namespace if the user may not list all."""
        self._cluster, self._namespace = cluster, namespace
        self._snapshots = extensions.snapshots()
        self._last: ClusterSnapshot | None = None

    def read(self) -> ClusterSnapshot:
        if self._last is None:
            with refusals():
                self._last = self._read()
            return self._last
        try:
            self._last = self._read()
        except RefusedError as error:
            self._last = replace(self._last, problem=next_step(error))
        return self._last

    def story(self, key: str) -> Sequence[str]:
        claim = self._last.state["claims"].get(key) if self._last else None
        if claim is None:
            return ()
        namespace, name = claim["namespace"], claim["name"]
        out = Console(width=1000, color_system=None)
        with out.capture() as captured:
            try:
                print_story(out, self._cluster, namespace, name)
                if claim["position"]:
                    out.print()
                    for line in waiting(of_claim(self._cluster, namespace, name)):
                        say(out, line)
            except RefusedError as error:
                say(out, next_step(error))
            except exits.CliError as error:
                say(out, error)
        return captured.get().splitlines()

    def _read(self) -> ClusterSnapshot:
        """Reads the cluster. Raises RefusedError."""
        found = {kind: self._all(kind) for kind in _DECIDE}
        hidden = tuple(kind for kind, objects in found.items() if objects is None)
        shown = self._namespace
        if found["gpuclaims"] is None:
            shown = shown or self._cluster.namespace
            found["gpuclaims"] = self._cluster.list(claims_path(shown))
        now = datetime.datetime.now(datetime.UTC)
        state = self._snapshots({kind: objects or [] for kind, objects in found.items()}, now)
        if shown:
            state["claims"] = {key: each for key, each in state["claims"].items() if each["namespace"] == shown}
        return ClusterSnapshot(self._cluster.server, state, time.time(), hidden)

    def _all(self, kind: str) -> list[Object] | None:
        """Returns all objects of a kind; None if the user may not list them."""
        path, selector = LISTS[kind]
        try:
            return self._cluster.list(path, selector)
        except RefusedError as error:
            if error.status != _FORBIDDEN:
                raise
            return None


def _pool_row(pool: Pool, claims: Mapping[str, Claim]) -> Row:
    free, total = Amount.from_object(pool["free"]), Amount.from_object(pool["total"])
    wait = sum(claim["pool"] == pool["name"] and claim["position"] > 0 for claim in claims.values())
    return Row(
        f"pool {pool['name']}",
        (
            words(pool["name"]),
            words(pool["phase"]),
            Cell(format_milli(free.milli), free.milli),
            Cell(format_milli(total.milli), total.milli),
            memory(free.memory),
            amount(wait),
            words(pool["message"] or "-"),
        ),
        (
            f"pool {pool['name']}: {pool['phase']}",
            f"  message    {pool['message'] or '-'}",
            f"  backend    {pool['backend']}, time of GPUs is {pool['computeMode']}",
            *(
                f"  schedule   {each['name']}: suspends from {each['from']} to {each['to']} {each['timeZone']}, "
                f"{', '.join(each['days'])}; {each['problem'] or ('now' if each['active'] else 'not now')}"
                for each in pool["schedules"]
            ),
        ),
    )


def _shares(claims: Mapping[str, Claim]) -> _Shares:
    found: dict[tuple[str, str], list[tuple[str, Claim, int]]] = {}
    for key, claim in claims.items():
        for share in claim["shares"]:
            found.setdefault((share["appliance"], share["gpu"]), []).append((key, claim, share["memory"]))
    return found


def _gpu_row(pool: Pool, appliance: Appliance, stored: Mapping[str, Any], given: _Shares) -> Row:
    """Returns the row of a GPU, or of an appliance without a GPU if `stored` is empty."""
    gpu = GpuStatus.from_object(stored or {"uuid": "-", "model": "-", "memory": 0, "shareable": 0, "healthy": True})
    shares = given.get((appliance["name"], gpu.uuid), [])
    # The sum of the claims that the user may not list.
    others = gpu.allocated_memory - sum(size for _, _, size in shares)
    bars = bar(gpu.shareable, [size for _, _, size in shares], others) if stored else "-"
    state = _state(appliance, gpu)
    return Row(
        f"gpu {pool['name']} {appliance['name']} {gpu.uuid}",
        (
            words(pool["name"]),
            words(appliance["name"]),
            words(gpu.uuid),
            words(gpu.model),
            Cell(bars, gpu.allocated_memory / (gpu.shareable or 1)),
            memory(gpu.allocated_memory),
            memory(gpu.shareable),
            words(state),
        ),
        (
            f"GPU {gpu.uuid} of {appliance['name']} ({appliance['node']}): {gpu.model}, {state}",
            f"  memory     {format_bytes(gpu.memory)}, of which {format_bytes(gpu.shareable)} can be given",
            f"  given      {format_bytes(gpu.allocated_memory)}",
            *(f"  has        {format_bytes(size)}: {key}, {claim['phase']}" for key, claim, size in shares),
            *([f"  others     {format_bytes(others)}: claims that are not shown"] if others > 0 else []),
        ),
    )


def _state(appliance: Appliance, gpu: GpuStatus) -> str:
    said = [appliance["phase"]] + ["cordoned"] * appliance["cordoned"] + ["broken"] * (not gpu.healthy)
    message = gpu.message or appliance["message"]
    return ", ".join(said) + (f": {message}" if message and said != ["Ready"] else "")
