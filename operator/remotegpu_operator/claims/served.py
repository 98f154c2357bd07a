"""Compares statuses with what appliances say: an appliance refuses a claim that it knows and has no room for.

A status need not be the operator's: administrators restore backups. An appliance that answers and does not refuse a
claim confirms it. While an appliance does not answer, its claims are `Lost`, and keep their shares.

A claim that is refused waits anew, and may get the same GPU again: the fault may have been in a restored status. An
appliance that refuses it again sees its GPUs otherwise than the operator: it does not get the claim for some minutes.
"""

import time
from collections.abc import Callable, Mapping
from typing import Final

from remotegpu.api.claims import GPUClaim
from remotegpu.api.lines import one_line

# The time for which an appliance must refuse a claim before the claim loses its share: that of three reports.
REFUSED_SECONDS: Final = 6.0
# An appliance from which a claim lost its share twice within this time does not get the claim until it is over.
AVOIDED_SECONDS: Final = 300.0
_MOST_WHY: Final = 300


class Served:
    def __init__(
        self,
        claims: Mapping[str, GPUClaim],
        look: Callable[[str, float], None],
        retry: Callable[[str, float], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`claims` are those of the cluster by uid. `look` queues a claim for reconciliation after some seconds.

        `retry` has the allocator told anew of a claim after some seconds, because `avoided` has changed.
        """
        self._claims = claims
        self._look = look
        self._retry = retry
        self._clock = clock
        # By appliance that reports and lease: since when the appliance refuses the lease's claim, and why.
        self._refused: dict[str, dict[str, tuple[float, str]]] = {}
        # By lease and appliance: when the claim lost its share, because the appliance refused it.
        self._losses: dict[tuple[str, str], list[float]] = {}

    def told(self, appliance: str, unserved: Mapping[str, str] | None) -> None:
        """Takes a report of an appliance: why it serves no claim that its status places there, by lease.

        None means that there is no report, as while the appliance does not answer.
        """
        before = self._refused.pop(appliance, None)
        if unserved is None:
            return
        now = self._clock()
        known = before or {}
        self._refused[appliance] = {lease: (known.get(lease, (now, ""))[0], why) for lease, why in unserved.items()}
        if before is not None and before.keys() == unserved.keys():
            return
        for claim in list(self._claims.values()):
            changed = before is None or (claim.lease_id in before) != (claim.lease_id in unserved)
            if changed and any(each.appliance == appliance for each in claim.status.allocations):
                self._look(claim.uid, 0.0)

    def confirmed(self, claim: GPUClaim) -> bool:
        """Whether each appliance of the claim has reported since this process began, and none refuses the claim."""
        names = {each.appliance for each in claim.status.allocations}
        return names <= self._refused.keys() and not self._refusals(claim)

    def lost(self, claim: GPUClaim) -> str:
        """Returns why an appliance has refused the claim for some time. If not long enough, queues the claim again."""
        for since, said in self._refusals(claim):
            left = since + REFUSED_SECONDS - self._clock()
            if left <= 0:
                return said
            self._look(claim.uid, left)
        return ""

    def displaced(self, claim: GPUClaim) -> None:
        """Notes that a claim has lost its share. `claim` is as it was before. A later refusal counts anew."""
        now, lease = self._clock(), claim.lease_id
        for name in {each.appliance for each in claim.status.allocations}:
            refused = self._refused.get(name, {})
            if lease in refused:
                since, why = refused[lease]
                refused[lease] = now, why
                if since + REFUSED_SECONDS <= now:
                    self._losses[lease, name] = [*self._recent(lease, name), now]
                    self._retry(claim.uid, AVOIDED_SECONDS)

    def avoided(self, claim: GPUClaim) -> frozenset[str]:
        """Returns the appliances that do not get the claim now, because they have refused it again."""
        named = (name for lease, name in self._losses if lease == claim.lease_id)
        return frozenset(name for name in named if len(self._recent(claim.lease_id, name)) > 1)

    def forget(self, claim: GPUClaim) -> None:
        for key in [each for each in self._losses if each[0] == claim.lease_id]:
            del self._losses[key]

    def _recent(self, lease_id: str, appliance: str) -> list[float]:
        after = self._clock() - AVOIDED_SECONDS
        return [since for since in self._losses.get((lease_id, appliance), ()) if since > after]

    def _refusals(self, claim: GPUClaim) -> list[tuple[float, str]]:
        found = []
        for name in dict.fromkeys(each.appliance for each in claim.status.allocations):
            if refused := self._refused.get(name, {}).get(claim.lease_id):
                since, why = refused
                found.append((since, f"{name} has no room for what its status says ({one_line(why, _MOST_WHY)})"))
        return found
