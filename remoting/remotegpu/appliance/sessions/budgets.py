"""What one lease and one tenant may have beside memory of a GPU. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from remotegpu.api.quantities import format_bytes
from remotegpu.appliance.sessions.state import Lease, Session

# A program that starts others, each with a context, works on the smallest share.
LEAST_SESSIONS: Final = 4
# By name, as the worker knows them (`remoting/worker/src/session/budgets.rs`).
SESSION_BUDGETS: Final = (
    "contexts",
    "streams",
    "events",
    "modules",
    "graphs",
    "graph-nodes",
    "pinned-bytes",
    "mirror-bytes",
)


def part_of_sessions(sessions: int, size: int, shareable: int) -> int:
    """Of a GPU's sessions those for a lease that has `size` of `shareable` bytes: rounded up, and not too few."""
    return min(sessions, max(LEAST_SESSIONS, -(-sessions * size // max(shareable, 1))))


def tenant_of(lease: Lease) -> str:
    """Whose budget it counts in: a namespace, or the name of a token; empty where there are no tokens."""
    return lease.claim.namespace if lease.claim else lease.owner


@dataclass(frozen=True, slots=True)
class Excess:
    """What a session, a lease or a tenant has more than it may."""

    sentence: str
    sessions: list[Session]  # those that hold most: without them the rest is within the budget


@dataclass(frozen=True, slots=True)
class HostMemory:
    """How much of this machine's memory sessions may hold: images, what copies pass through, commands that wait, and
    whatever else their processes have. The software GPU's memory is of it, too, and comes on top."""

    per_lease: int
    per_tenant: int
    software: bool

    def of_lease(self, lease: Lease) -> int:
        return self.per_lease + self._of_gpus([lease])

    def excesses(self, leases: Iterable[Lease]) -> Iterator[Excess]:
        """Sessions whose image is larger than it may be, leases past their budget, then tenants past theirs. What a
        session holds that ends already counts as free."""
        by_tenant: defaultdict[str, list[Lease]] = defaultdict(list)
        for lease in leases:
            by_tenant[tenant_of(lease)].append(lease)
            for session in lease.sessions.values():
                if session.image is not None and not session.ended and (sentence := session.image.excess()):
                    yield Excess(sentence, [session])
            yield from _beyond([lease], self.of_lease(lease), "the lease", "--host-memory-per-lease")
        for tenant, its in by_tenant.items():
            if tenant:
                budget = self.per_tenant + self._of_gpus(its)
                yield from _beyond(its, budget, tenant, "--host-memory-per-tenant")

    def _of_gpus(self, leases: Iterable[Lease]) -> int:
        return sum(sum(lease.placement.sizes) for lease in leases) if self.software else 0


def _beyond(leases: list[Lease], budget: int, who: str, option: str) -> Iterator[Excess]:
    living = [session for lease in leases for session in lease.sessions.values() if not session.ended]
    held = left = sum(session.host_bytes for session in living)
    if held <= budget:
        return
    ending = []
    for session in sorted(living, key=lambda session: session.host_bytes, reverse=True):
        ending.append(session)
        left -= session.host_bytes
        if left <= budget:
            break
    holds = f"{who} holds {format_bytes(held)} of the appliance's own memory, its budget is {format_bytes(budget)}"
    advice = "this process holds most: load less device code, copy less at a time"
    yield Excess(f"{holds} ({option}), and {advice}", ending)


def unknown_budget(option: str) -> str:
    """What is wrong with a NAME=NUMBER of --session-budget; empty if nothing is."""
    name, _, number = option.partition("=")
    if name in SESSION_BUDGETS and number.isdecimal():
        return ""
    return f"--session-budget: {option!r} is none; write NAME=NUMBER, with one of {', '.join(SESSION_BUDGETS)}"
