"""Asks the operator to pack a pool, or to say how it would, and prints the answer."""

import secrets
import time
from collections.abc import Iterator
from typing import Final

from rich.console import Console

from remotegpu.api.kubernetes import API_VERSION, PACK_ANNOTATION, POOLS
from remotegpu.api.objects import UNREADABLE
from remotegpu.api.pools import GPUPool
from remotegpu.api.schedules import DRY_RUN, FAILED, MOVED, NOW, PackMove, PackPhase, PackStatus
from remotegpu.cli import exits
from remotegpu.cli.cluster.claims import refusals
from remotegpu.cli.cluster.objects import Cluster, Object
from remotegpu.cli.output import add_row, console, new_table, say

_POLL_SECONDS: Final = 0.5
# So long an operator may need for an answer, in seconds; a packing that runs is waited for.
_ANSWER_SECONDS: Final = 60.0


def pack(cluster: Cluster, name: str, *, dry_run: bool, wait: bool) -> None:
    """Writes the request, and with `wait` follows what the operator makes of it. Raises CliError."""
    path, out = f"/apis/{API_VERSION}/{POOLS}/{name}", console()
    request = f"{DRY_RUN if dry_run else NOW}-{secrets.token_hex(4)}"
    with refusals():
        cluster.patch(path, {"metadata": {"annotations": {PACK_ANNOTATION: request}}})
        if not wait:
            say(out, f"{name} was told; `kubectl describe gpupool {name}` says what becomes of it")
            return
        told: set[PackMove] = set()
        until = time.monotonic() + _ANSWER_SECONDS
        while True:
            stored = cluster.get(path)
            answer = _read(stored)
            if answer is not None and (answer.request == request or answer.phase is PackPhase.MOVING):
                until = time.monotonic() + _ANSWER_SECONDS
            elif (stored["metadata"].get("annotations") or {}).get(PACK_ANNOTATION) != request:
                said = f"another request for {name} came after this one, or it was taken back: ask again"
                raise exits.CliError(exits.BUSY, said)
            elif time.monotonic() > until:
                said = f"the operator does not answer: `kubectl get gpupool {name}` and its log say why"
                raise exits.CliError(exits.UNAVAILABLE, said)
            if answer is not None and answer.request == request:
                for move in answer.moves:
                    if move.result in (MOVED, FAILED) and move not in told:
                        told.add(move)
                        say(out, _line(move))
                if answer.phase is not PackPhase.MOVING:
                    break
            time.sleep(_POLL_SECONDS)
    if dry_run:
        _print_plan(out, answer)
    for line in _stays(answer):
        say(out, line)
    say(out, answer.message)
    if any(move.result == FAILED for move in answer.moves):
        raise exits.CliError(exits.BUSY, f"not every claim of {name} moved; the reasons are above")


def _read(stored: Object) -> PackStatus | None:
    try:
        return GPUPool.from_object(stored).status.pack
    except UNREADABLE as error:
        name = stored["metadata"]["name"]
        said = f"pool {name} cannot be read ({error!r}): use `kubectl remotegpu` of the operator's version"
        raise exits.CliError(exits.SOFTWARE, said) from None


def _print_plan(out: Console, answer: PackStatus) -> None:
    table = new_table("CLAIM", "FROM", "TO")
    for move in answer.moves:
        add_row(table, move.claim, move.source, move.target)
    if table.row_count:
        out.print(table)
    say(out, f"GPUs in use: {answer.gpus_before} now, {answer.gpus_after} after it")


def _stays(answer: PackStatus) -> Iterator[str]:
    for each in answer.stays:
        more = each.count - len(each.claims)
        names = ", ".join(each.claims) + (f" and {more} more" if more else "")
        yield f"stays: {names}: {each.why}"


def _line(move: PackMove) -> str:
    if move.result == FAILED:
        return f"{move.claim} stays on {move.source}: {move.message}"
    return f"{move.claim} has moved from {move.source} to {move.target}"
