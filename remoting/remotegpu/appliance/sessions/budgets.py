"""Budgets of leases and tenants for all but GPU memory. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from remotegpu.api.quantities import format_bytes
from remotegpu.appliance.sessions.state import Lease, Session

# The least number of sessions of a lease: programs that start other processes work on the smallest share too.
LEAST_SESSIONS: Final = 4
# The names of budgets in the worker (`remoting/worker/src/session/budgets.rs`).
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
    """Returns the part of a GPU's sessions for a lease of `size` bytes, rounded up, but at least LEAST_SESSIONS."""
    return min(sessions, max(LEAST_SESSIONS, -(-sessions * size // max(shareable, 1))))


def tenant_of(lease: Lease) -> str:
    """Returns the tenant to which a lease is charged: a namespace or a token's name; empty if there are no tokens."""
    return lease.claim.namespace if lease.claim else lease.owner


@dataclass(frozen=True, slots=True)
class Excess:
    """A session, a lease or a tenant over its limit: the error, and the sessions to end."""

    sentence: str
    sessions: list[Session]  # the largest sessions, as many as must end


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Limits of this machine's memory for sessions, with images, copy buffers, queued commands and all else.

    A software GPU's memory is a part of this memory, so the size of the share is added to the limit.
    """

    per_lease: int
    per_tenant: int
    software: bool

    def of_lease(self, lease: Lease) -> int:
        return self.per_lease + self._of_gpus([lease])

    def excesses(self, leases: Iterable[Lease]) -> Iterator[Excess]:
        """Yields an excess for each session with too large an image, each lease and each tenant over its budget.

        The memory of a session that is ending counts as free.
        """
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
    """Returns an error for an invalid NAME=NUMBER of --session-budget; empty if it is valid."""
    name, _, number = option.partition("=")
    if name in SESSION_BUDGETS and number.isdecimal():
        return ""
    return f"--session-budget: {option!r} is none; write NAME=NUMBER, with one of {', '.join(SESSION_BUDGETS)}"
