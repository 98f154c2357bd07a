"""What one lease and one tenant may have beside memory of a GPU. Pure, but for reading /proc."""

import contextlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from remotegpu.appliance.state import Lease, Session

# A program that starts others, each with a context, works on the smallest share.
LEAST_SESSIONS: Final = 4
# By name, as the worker knows them (`remoting/worker/src/budgets.rs`).
SESSION_BUDGETS: Final = ("contexts", "streams", "events", "modules", "graphs", "graph-nodes", "pinned-bytes")
# Memory that a process has for itself or shares, without files of programs and libraries. Unit of the file: KiB.
_HELD: Final = re.compile(r"^Rss(?:Anon|Shmem):\s+(\d+) kB$", re.MULTILINE)


def part_of_sessions(sessions: int, size: int, shareable: int) -> int:
    """Of a GPU's sessions those for a lease that has `size` of `shareable` bytes: rounded up, and not too few."""
    return min(sessions, max(LEAST_SESSIONS, -(-sessions * size // max(shareable, 1))))


def tenant_of(lease: Lease) -> str:
    """Whose budget it counts in: a namespace, or the name of a token; empty where there are no tokens."""
    return lease.claim.namespace if lease.claim else lease.owner


def held_by(pids: Iterable[int]) -> int:
    """Bytes of this machine's memory that processes hold. What they share counts for each. Those of the software GPU
    hold its memory, too; of a real one page-locked memory is not seen."""
    return sum(map(_held, pids))


def host_bytes(sessions: Iterable[Session]) -> int:
    """As `held_by`, of sessions."""
    return held_by(session.process.pid for session in sessions if session.process is not None)


def unknown_budget(option: str) -> str:
    """What is wrong with a NAME=NUMBER of --session-budget; empty if nothing is."""
    name, _, number = option.partition("=")
    if name in SESSION_BUDGETS and number.isdecimal():
        return ""
    return f"--session-budget: {option!r} is none; write NAME=NUMBER, with one of {', '.join(SESSION_BUDGETS)}"


def _held(pid: int) -> int:
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
        return sum(int(kibibytes) << 10 for kibibytes in _HELD.findall(status))
    return 0
