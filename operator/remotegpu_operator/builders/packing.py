"""Pure functions about packing a pool: which claims may move, what a plan says, and what becomes of it."""

import datetime
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from remotegpu.api.claims import GPUClaim, Mode, Phase, Placement, Reason
from remotegpu.api.conditions import Condition, ConditionStatus
from remotegpu.api.kubernetes import PACK_ANNOTATION
from remotegpu.api.pools import GPUPool
from remotegpu.api.schedules import (
    DRY_RUN,
    FAILED,
    MOVED,
    MOVING,
    NOW,
    PackFailure,
    PackMove,
    PackPhase,
    PackStatus,
    PackStays,
    is_request,
)
from remotegpu_operator.allocation import About
from remotegpu_operator.builders import claims as statuses

# The reasons of allocated claims that may move.
_MOVES: Final = frozenset({Reason.ALLOCATED, Reason.NOT_RESIZED})
_HOUR: Final = datetime.timedelta(hours=1)
_DAY: Final = datetime.timedelta(days=1)
# As `crds/gpupools.yaml` limits them: the API server refuses a status with one that is longer, and all else with it.
_MOST_NAMES: Final = 20
_MOST_WHYS: Final = 64
_MOST_WHY: Final = 900
_MOST_MESSAGE: Final = 1024
_MOST_MOVES: Final = 240

HAS_FAILED: Final = "its move failed in the last day: a request tries it again"
HAS_MOVED: Final = "it has moved already"


def about(claim: GPUClaim | None, sessions: int, left: str) -> About:
    """Returns what a plan needs to know of a claim. `left` is why packing leaves it alone; empty if it does not."""
    if claim is None:
        return About(stays="it got its share just now")
    # Such a claim can get more of its own GPUs alone.
    waits = claim.status.phase is Phase.SUSPENDED or claim.status.reason is Reason.NOT_RESIZED
    spread = claim.spec.placement is Placement.SPREAD
    return About(max(1, sessions), share_since(claim), left or stays(claim), waits, spread)


def stays(claim: GPUClaim) -> str:
    """Returns why the claim itself does not let itself be moved; empty if it does."""
    return next(_reasons(claim), "")


def _reasons(claim: GPUClaim) -> Iterator[str]:
    status, spec = claim.status, claim.spec
    if status.phase is not Phase.ALLOCATED:
        yield f"it is {status.phase}"
    if status.move is not None:
        yield "it moves already"
    if status.resize:
        yield "its share changes its size"
    if spec.mode is Mode.OFFLOAD:
        yield "spec.mode is offload: its sessions do not move"
    if not spec.movable:
        yield "spec.movable is not true"
    if spec.appliance:
        yield "spec.appliance names its appliance"
    if spec.placement is Placement.SPREAD:
        yield "spec.placement is Spread"
    if status.reason not in _MOVES:
        yield f"its reason is {status.reason}"


def share_since(claim: GPUClaim) -> float:
    """Returns when the claim's share last began, moved or changed its size, in seconds since 1970; 0: not known."""
    if claim.status.share_since:
        return datetime.datetime.fromisoformat(claim.status.share_since).timestamp()
    since = statuses.allocated_since(claim)
    return since.timestamp() if since else 0.0


def dry(request: str) -> bool:
    return request.startswith(DRY_RUN)


def asked(pool: GPUPool, status: PackStatus) -> bool:
    """Whether the pool has a request that was not answered yet."""
    return is_request(pool.pack_request) and pool.pack_request != status.request


def wanted(pool: GPUPool, status: PackStatus, now: datetime.datetime) -> bool:
    """Whether a packing that has begun is to continue.

    One by schedule is wanted within its hours, one on request until the annotation is removed.
    """
    if not status.scheduled:
        return bool(pool.pack_request)
    spec = pool.spec.pack
    return spec.hours.covers(now) if spec.hours is not None else spec.every is not None


def left(pool: GPUPool, status: PackStatus, now: datetime.datetime) -> int:
    """Returns how many more moves may begin now: in this hour, and in the packing that runs, whose moves are listed."""
    begun = sum(bool(each.result) for each in status.moves) if status.phase is PackPhase.MOVING else 0
    hour = pool.spec.pack.moves_per_hour - len(within_an_hour(status.recent, now))
    return max(0, min(hour, _MOST_MOVES - begun))


def within_an_hour(recent: Iterable[str], now: datetime.datetime) -> tuple[str, ...]:
    """Returns those of the times that are in the last hour. A time in the future is from a clock that was wrong."""
    return tuple(each for each in recent if _since(each, now) < _HOUR)


def _since(stamp: str, now: datetime.datetime) -> datetime.timedelta:
    return abs(now - datetime.datetime.fromisoformat(stamp))


def left_alone(status: PackStatus, now: datetime.datetime) -> frozenset[str]:
    """Returns the uids of the claims whose move failed a short time ago."""
    return frozenset(each.uid for each in status.failed if _since(each.at, now) < _DAY)


def arrived(status: PackStatus) -> frozenset[str]:
    """Returns the claims, by namespace and name, that have moved in the packing that runs."""
    running = status.phase is PackPhase.MOVING
    return frozenset(each.claim for each in status.moves if running and each.result == MOVED)


def planned(
    before: PackStatus,
    request: str,
    counts: tuple[int, int],
    moves: tuple[PackMove, ...],
    stays: Mapping[str, str],
    now: str,
    *,
    only: bool,
    scheduled: bool,
) -> PackStatus:
    """Returns the status of a new plan, which no request asked for if it is `scheduled`.

    With `only` the plan is not carried out. `counts` are the GPUs in use before and after; `stays` has claims' reasons.
    """
    in_use, after = counts
    some = f"{len(moves)} claim{'' if len(moves) == 1 else 's'}"
    message = f"{some} would move, and {after} of {in_use} GPUs would stay in use" if moves else "no move empties a GPU"
    return replace(
        before,
        request=before.request if scheduled else request,
        scheduled=before.scheduled if only else scheduled,
        phase=PackPhase.PLANNED if only else PackPhase.MOVING,
        started=before.started if only else now,
        message=message,
        gpus_before=in_use,
        gpus_after=after,
        moves=moves,
        stays=grouped(stays),
        # A request tries again what has failed.
        failed=before.failed if only or scheduled else (),
    )


def grouped(stays: Mapping[str, str]) -> tuple[PackStays, ...]:
    """Returns claims by the reason why they stay, the most frequent first."""
    by_why: dict[str, list[str]] = {}
    for claim, why in sorted(stays.items()):
        by_why.setdefault(why[:_MOST_WHY], []).append(claim)
    ordered = sorted(by_why.items(), key=lambda each: (-len(each[1]), each[0]))[:_MOST_WHYS]
    return tuple(PackStays(why, len(claims), tuple(claims[:_MOST_NAMES])) for why, claims in ordered)


def moving(status: PackStatus, move: PackMove, more: tuple[PackMove, ...], now: str) -> PackStatus:
    """Returns the status with `move` begun: it counts against the hour. `more` are the planned moves after it."""
    begun = tuple(each for each in status.moves if each.result)
    moved = sum(each.result == MOVED for each in begun)
    message = (
        f"claim {move.claim} moves from {move.source} to {move.target}; {moved} moved before it, {len(more)} follow"
    )
    return replace(
        status,
        phase=PackPhase.MOVING,
        message=message[:_MOST_MESSAGE],
        moves=(*begun, replace(move, result=MOVING), *more),
        recent=(*status.recent, now),
    )


def ended(status: PackStatus, uid: str, why: str, now: str) -> PackStatus:
    """Returns the status after the move that was begun. `why` is the reason of its failure; empty if it succeeded."""
    index = next(index for index, each in enumerate(status.moves) if each.result == MOVING)
    result = replace(status.moves[index], result=FAILED if why else MOVED, message=why[:_MOST_WHY])
    failed = (*status.failed, PackFailure(uid, now))[-_MOST_MOVES:] if why else status.failed
    return replace(status, moves=(*status.moves[:index], result, *status.moves[index + 1 :]), failed=failed)


def not_begun(status: PackStatus) -> PackStatus:
    """Returns the status without the move that was to begin, and did not: it does not count."""
    moves = tuple(each for each in status.moves if each.result != MOVING)
    return replace(status, moves=moves, recent=status.recent[:-1])


def done(status: PackStatus, in_use: int, stays: Mapping[str, str], *, wanted: bool) -> PackStatus:
    """Returns the status at the end.

    `in_use` is the number of GPUs in use now, `stays` why claims did not move. Not `wanted` are moves that are left.
    """
    moves = tuple(each for each in status.moves if each.result)
    there = arrived(status)
    stays = {claim: why for claim, why in stays.items() if claim not in there}
    moved, failed = (sum(each.result == result for each in moves) for result in (MOVED, FAILED))
    message = f"{moved} moved" + (f", {failed} did not" if failed else "")
    if not moves:
        message = "no move empties a GPU" if wanted else "no claim moved"
    if not wanted:
        message = f"{message}, and the rest is not wanted any more"
    message = f"{message}; GPUs in use: {in_use}, and {status.gpus_before} before"
    return replace(status, phase=PackPhase.DONE, message=message, gpus_after=in_use, moves=moves, stays=grouped(stays))


def problem(pool: GPUPool) -> tuple[str, str]:
    """Returns the reason and the sentence if the pool's schedule or request says nothing; else empty strings."""
    if pool.pack_request and not is_request(pool.pack_request):
        said = (
            f"the annotation {PACK_ANNOTATION}={pool.pack_request[:80]} asks for nothing: write {NOW}-1 to pack the "
            f"pool, {DRY_RUN}-1 for the plan alone, each time with another number, or remove it"
        )
        return "BadRequest", said
    hours = pool.spec.pack.hours
    return ("NoSuchTimeZone", hours.problem) if hours and hours.problem else ("", "")


def condition(pool: GPUPool, pack: PackStatus, now: str) -> Condition:
    wrong, said = problem(pool)
    failed = any(each.result == FAILED for each in pack.moves)
    moves = pack.phase is PackPhase.MOVING and bool(pack.moves)
    status: ConditionStatus = "False" if wrong or failed or moves else "True"
    reason = wrong or ("MovesFailed" if failed else str(pack.phase))
    return Condition("Packed", status, reason, (said or pack.message)[:_MOST_MESSAGE], now, pool.generation)
