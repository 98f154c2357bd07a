"""Pure functions about packing a pool: which claims may move, what a plan says, and what becomes of it."""

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from remotegpu.api.claims import GPUClaim, Mode, Phase, Placement, Reason
from remotegpu.api.conditions import Condition, ConditionStatus
from remotegpu.api.pools import GPUPool
from remotegpu.api.schedules import DRY_RUN, FAILED, MOVED, MOVING, PackMove, PackPhase, PackStatus, PackStays
from remotegpu_operator.allocation import About
from remotegpu_operator.builders import claims as statuses

# The reasons of allocated claims that may move.
_MOVES: Final = frozenset({Reason.ALLOCATED, Reason.NOT_RESIZED})
_HOUR: Final = datetime.timedelta(hours=1)
_MOST_NAMES: Final = 20
_MOST_WHYS: Final = 64
_MOST_WHY: Final = 900


def about(claim: GPUClaim | None, sessions: int, failed: str) -> About:
    """Returns what a plan needs to know of a claim. `failed` is why its move failed in this packing, or empty."""
    if claim is None:
        return About(stays="it got its share just now")
    return About(max(1, sessions), share_since(claim), failed or stays(claim))


def stays(claim: GPUClaim) -> str:
    """Returns why the claim itself does not let itself be moved; empty if it does."""
    status, spec = claim.status, claim.spec
    reasons = (
        (status.phase is not Phase.ALLOCATED, f"it is {status.phase}"),
        (status.move is not None, "it moves already"),
        (bool(status.resize), "its share changes its size"),
        (spec.mode is Mode.OFFLOAD, "spec.mode is offload: its sessions do not move"),
        (not spec.movable, "spec.movable is not true"),
        (bool(spec.appliance), "spec.appliance names its appliance"),
        (spec.placement is Placement.SPREAD, "spec.placement is Spread"),
        (status.reason not in _MOVES, f"its reason is {status.reason}"),
    )
    return next((why for holds, why in reasons if holds), "")


def share_since(claim: GPUClaim) -> float:
    """Returns when the claim's share last began, moved or changed its size, in seconds since 1970; 0: not known."""
    if claim.status.share_since:
        return datetime.datetime.fromisoformat(claim.status.share_since).timestamp()
    since = statuses.allocated_since(claim)
    return since.timestamp() if since else 0.0


def dry(request: str) -> bool:
    return request.startswith(DRY_RUN)


def within_an_hour(recent: Iterable[str], now: datetime.datetime) -> tuple[str, ...]:
    return tuple(each for each in recent if now - datetime.datetime.fromisoformat(each) < _HOUR)


def planned(
    before: PackStatus,
    request: str,
    counts: tuple[int, int],
    moves: tuple[PackMove, ...],
    stays: Mapping[str, str],
    now: str,
    *,
    only: bool,
) -> PackStatus:
    """Returns the status of a new plan. With `only` the plan is not carried out.

    `counts` are the GPUs in use before and after; `stays` has claims' reasons.
    """
    in_use, after = counts
    some = f"{len(moves)} claim{'' if len(moves) == 1 else 's'}"
    message = f"{some} would move, and {after} of {in_use} GPUs would stay in use" if moves else "no move empties a GPU"
    return replace(
        before,
        request=request,
        phase=PackPhase.PLANNED if only else PackPhase.MOVING,
        started=before.started if only else now,
        message=message,
        gpus_before=in_use,
        gpus_after=after,
        moves=moves,
        stays=grouped(stays),
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
        message=message,
        moves=(*begun, replace(move, result=MOVING), *more),
        recent=(*status.recent, now),
    )


def ended(status: PackStatus, why: str) -> PackStatus:
    """Returns the status after the move that was begun. `why` is the reason of its failure; empty if it succeeded."""
    index = next(index for index, each in enumerate(status.moves) if each.result == MOVING)
    result = replace(status.moves[index], result=FAILED if why else MOVED, message=why[:_MOST_WHY])
    return replace(status, moves=(*status.moves[:index], result, *status.moves[index + 1 :]))


def done(status: PackStatus, in_use: int, stays: Mapping[str, str]) -> PackStatus:
    """Returns the status at the end. `in_use` is the number of GPUs in use now, `stays` why claims did not move."""
    moves = tuple(each for each in status.moves if each.result)
    arrived = {each.claim for each in moves if each.result == MOVED}
    stays = {claim: why for claim, why in stays.items() if claim not in arrived}
    moved, failed = (sum(each.result == result for each in moves) for result in (MOVED, FAILED))
    message = f"{moved} moved" + (f", {failed} did not" if failed else "")
    if not moves:
        message = "no move empties a GPU"
    message = f"{message}; GPUs in use: {in_use}, and {status.gpus_before} before"
    return replace(status, phase=PackPhase.DONE, message=message, gpus_after=in_use, moves=moves, stays=grouped(stays))


def condition(pool: GPUPool, pack: PackStatus, now: str) -> Condition:
    problem = pool.spec.pack.hours.problem if pool.spec.pack.hours else ""
    failed = any(each.result == FAILED for each in pack.moves)
    moves = pack.phase is PackPhase.MOVING and bool(pack.moves)
    status: ConditionStatus = "False" if problem or failed or moves else "True"
    reason = "NoSuchTimeZone" if problem else "MovesFailed" if failed else str(pack.phase)
    return Condition("Packed", status, reason, (problem or pack.message)[:1024], now, pool.generation)
