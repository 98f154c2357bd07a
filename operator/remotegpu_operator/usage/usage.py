"""Records which claim has which share from when to when, also across times without a running operator.

The start of a share is recorded before the share is stored in the claim's status. So the record has every share, even
if the operator ends soon after. The end is recorded when the API server reports it. If a claim ends while no operator
runs, the exact end is unknown: the record then has the earliest end and the length of the uncertain time. Allocations
wait at most two seconds for the record, and do not fail if it cannot be written.
"""

import asyncio
import datetime
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

from remotegpu.api.claims import ClaimStatus, GPUClaim
from remotegpu.api.conditions import Condition
from remotegpu.api.usage import Holding, Share, shares_of
from remotegpu_operator import metrics
from remotegpu_operator.builders.claims import ALLOCATED_CONDITION
from remotegpu_operator.cluster.kube import ApiError, Unanswered
from remotegpu_operator.usage.journal import FullError, Journal

_log = logging.getLogger(__name__)

# The interval for recording the time up to which the record is complete.
_KNOWN_SECONDS: Final = 10.0
# The longest time after which the API server reports a change.
_LATE_SECONDS: Final = 1
# The longest time that an allocation waits for its record.
_WAIT_SECONDS: Final = 2.0
_RETRY_SECONDS: Final = 1.0

Key = tuple[str, int]


class Usage:
    def __init__(
        self, journal: Journal, user_of: Callable[[GPUClaim], str], *, clock: Callable[[], float] = time.time
    ) -> None:
        self._journal = journal
        self._user_of = user_of
        self._clock = clock
        # The present holding of each claim. `_unsure` has the claims whose status may not have the share yet.
        self._held: dict[str, Holding] = {}
        self._unsure: set[str] = set()
        self._loaded = asyncio.Event()
        # Holdings to be written. Changes only of sessions wait for the next write of the head.
        self._pending: dict[Key, Holding] = {}
        self._sessions_changed: set[str] = set()
        self._wanted = asyncio.Event()
        self._recorded: asyncio.Future[None] | None = None
        # The uids of claims with a session, by appliance.
        self._in_use: dict[str, frozenset[str]] = {}

    async def begin(self, claims: Mapping[str, GPUClaim]) -> None:
        """Loads the record and starts to follow the claims. Retries until the record can be read."""
        while not self._loaded.is_set():
            try:
                record = await self._journal.load()
            except (ApiError, *Unanswered) as error:
                metrics.RECONCILE_ERRORS.labels("usage").inc()
                _log.error("usage cannot be read, and is not recorded until it can: %s", error)
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            self._settle(record.open(), record.until, claims)

    def _settle(self, recorded: Iterable[Holding], until: int, claims: Mapping[str, GPUClaim]) -> None:
        """Reconciles the recorded holdings with the present claims."""
        for each in sorted(recorded, key=lambda each: each.start):
            if (older := self._held.get(each.uid)) is not None:
                self._record(older.ended(each.start))
            self._meet(each, until, claims.get(each.uid))
        self._loaded.set()
        for claim in claims.values():
            self.observe(claim)

    def _meet(self, recorded: Holding, until: int, claim: GPUClaim | None) -> None:
        known = max(until, recorded.start)
        # It is unknown whether the claim had a session since `known`. The appliances will report whether it has one.
        holding = recorded.told(False, known)
        if recorded.in_use_since is not None:
            holding = replace(holding, idle_since=self._now())
        self._held[holding.uid] = holding
        shares = shares_of(claim.status) if claim is not None else ()
        since, back = (_stamp(claim.status, state) if claim is not None else None for state in ("True", "False"))
        if shares and (since is None or since <= holding.start):
            if (now := replace(holding, shares=shares)) != recorded:
                self._replace(now)
            return
        del self._held[holding.uid]
        if not shares and back is not None and back >= holding.start:
            self._record(holding.ended(back))
        elif claim is None or until > holding.start:
            # The share ended while no operator ran, or an operator without a record allocated another share since.
            self._record(holding.ended(known, max(0, (since or self._now()) - known)))
        else:
            self._record(replace(holding, void=True))  # the share was never stored in the claim's status

    async def announce(self, claim: GPUClaim, status: ClaimStatus) -> None:
        """Records the share in `status`, before the status is stored. Returns when it is written, or after 2 s."""
        shares = shares_of(status)
        if not self._loaded.is_set() or not shares or shares == self._shares(claim.uid):
            return
        before = self._held.get(claim.uid)
        if before is not None:
            self._end(before)
        self._start(claim, shares, _stamp(status, "True") if before is None else None, before)
        self._unsure.add(claim.uid)
        if self._recorded is None:
            self._recorded = asyncio.get_running_loop().create_future()
        self._wanted.set()
        await asyncio.wait([self._recorded], timeout=_WAIT_SECONDS)

    def retract(self, claim: GPUClaim) -> None:
        """Reverts `announce` for a status that could not be stored. The claim keeps its previous share."""
        holding = self._held.get(claim.uid)
        if holding is None or claim.uid not in self._unsure:
            return
        self._unsure.discard(claim.uid)
        if shares := shares_of(claim.status):
            self._replace(replace(holding, shares=shares))
        else:
            del self._held[claim.uid]
            self._record(replace(holding, void=True))

    def observe(self, claim: GPUClaim) -> None:
        """Records the present share of a claim from the API server."""
        if not self._loaded.is_set():
            return
        shares, holding = shares_of(claim.status), self._held.get(claim.uid)
        if shares == (holding.shares if holding else ()):
            self._unsure.discard(claim.uid)
        elif claim.uid in self._unsure:
            return  # a status from before `announce`
        elif holding is None:
            self._start(claim, shares, _stamp(claim.status, "True"), None)
        elif not shares:
            self._end_by_status(holding, claim)
        else:
            self._record(holding.ended(self._now()))
            self._start(claim, shares, None, holding)

    def gone(self, uid: str) -> None:
        """Records that the claim was deleted."""
        if (holding := self._held.pop(uid, None)) is None:
            return
        self._end(holding)
        self._unsure.discard(uid)

    def user(self, uid: str) -> str:
        """Returns the claim's recorded user; empty if the record has no holding of the claim."""
        holding = self._held.get(uid)
        return holding.user if holding is not None else ""

    def told(self, appliance: str, in_use: frozenset[str]) -> None:
        """Stores the uids of the claims with a session on the appliance. `in_use` is empty if it does not answer."""
        before = self._in_use.get(appliance, frozenset())
        self._in_use[appliance] = in_use
        for uid in (before | in_use) & self._held.keys():
            used = any(uid in each for each in self._in_use.values())
            changed = self._held[uid].told(used, self._now())
            if changed is not self._held[uid]:
                self._held[uid] = changed
                self._sessions_changed.add(uid)

    def unused(self, claim: GPUClaim) -> int:
        """Returns for how many seconds the claim has had a share without a session; 0 if this is unknown."""
        holding = self._held.get(claim.uid)
        if holding is None or holding.in_use_since is not None:
            return 0
        told = all(each.appliance in self._in_use for each in claim.status.allocations)
        return self._now() - holding.idle_since if told else 0

    async def run(self) -> None:
        await self._loaded.wait()
        _log.info("usage of %d claims is recorded", len(self._held))
        due = 0.0
        while True:
            with_head = time.monotonic() >= due
            try:
                await self._write(with_head=with_head)
            except (ApiError, FullError, *Unanswered) as error:
                metrics.RECONCILE_ERRORS.labels("usage").inc()
                _log.error("usage is not recorded, and tried again: %s", error)
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            if with_head:
                due = time.monotonic() + _KNOWN_SECONDS
            try:
                async with asyncio.timeout(max(0.0, due - time.monotonic())):
                    await self._wanted.wait()
            except TimeoutError:
                pass

    async def _write(self, *, with_head: bool) -> None:
        self._wanted.clear()
        known = min([self._now() - _LATE_SECONDS, *(self._held[uid].start for uid in self._unsure)])
        if with_head:
            for uid in self._sessions_changed & self._held.keys():
                self._pending[self._held[uid].key] = self._held[uid]
            self._sessions_changed.clear()
        pending, self._pending = self._pending, {}
        waiting, self._recorded = self._recorded, None
        try:
            if pending:
                await self._journal.append(pending.values())
        except BaseException:
            self._pending = pending | self._pending
            raise
        finally:
            if waiting is not None and not waiting.done():
                waiting.set_result(None)
        if with_head and self._held:
            await self._journal.known(known)
        if with_head:
            await self._journal.fold({holding.key: holding for holding in self._held.values()})

    # Changes of holdings.

    def _shares(self, uid: str) -> tuple[Share, ...]:
        holding = self._held.get(uid)
        return holding.shares if holding else ()

    def _start(self, claim: GPUClaim, shares: tuple[Share, ...], since: int | None, before: Holding | None) -> None:
        start = self._now() if since is None else since
        self._replace(
            Holding(
                uid=claim.uid,
                namespace=claim.namespace,
                claim=claim.name,
                user=before.user if before else self._user_of(claim),
                pool=claim.spec.pool,
                shares=shares,
                start=start,
                in_use_since=start if before and before.in_use_since is not None else None,
                idle_since=before.idle_since if before else start,
                created=_seconds(claim.created) if claim.created else 0,
            )
        )

    def _end(self, holding: Holding) -> None:
        """Ends a holding now. If the share may never have been stored, the holding's whole time is uncertain."""
        now = self._now()
        unsure = holding.uid in self._unsure
        self._record(holding.ended(holding.start, max(0, now - holding.start)) if unsure else holding.ended(now))

    def _end_by_status(self, holding: Holding, claim: GPUClaim) -> None:
        """Ends a holding of a claim that lost its share, at the time in the claim's status."""
        del self._held[holding.uid]
        end = _stamp(claim.status, "False")
        self._record(holding.ended(self._now() if end is None else end))

    def _replace(self, holding: Holding) -> None:
        self._held[holding.uid] = holding
        self._record(holding)

    def _record(self, holding: Holding) -> None:
        self._pending[holding.key] = holding
        self._wanted.set()

    def _now(self) -> int:
        return int(self._clock())


def _stamp(status: ClaimStatus, allocated: str) -> int | None:
    """Returns the time since which the condition Allocated has the value `allocated`, in seconds since 1970.

    Returns None if the condition has another value.
    """
    found: Condition | None = next((each for each in status.conditions if each.type == ALLOCATED_CONDITION), None)
    if found is None or found.status != allocated or not found.last_transition_time:
        return None
    return _seconds(found.last_transition_time)


def _seconds(stamp: str) -> int:
    return int(datetime.datetime.fromisoformat(stamp).timestamp())
