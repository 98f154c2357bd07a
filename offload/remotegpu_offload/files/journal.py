"""What differs between two versions of an SQLite database, and the journal that undoes it. Files are given open.

The format is that of <https://www.sqlite.org/fileformat2.html#the_rollback_journal>: who opens a database beside
which such a journal lies puts the old pages back first.
"""

import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

_MAGIC: Final = bytes.fromhex("d9d505f920a163d7")
_SECTOR: Final = 512
_CHUNK: Final = 1 << 20
# SQLite locks the byte there, and neither stores anything in its page nor accepts it from a journal.
_PENDING_BYTE: Final = 0x40000000
# The change counter, and for which of its values the header's page count holds.
_COUNTERS: Final = (24, 92)


@dataclass(frozen=True, slots=True)
class Change:
    """From one version to the next. Pages count from 0 here, and from 1 in the format."""

    page_size: int
    size_before: int
    size_after: int
    pages: Sequence[int]  # those of the version before that are other or gone
    runs: Sequence[tuple[int, int]]  # offset and length of what is other or new in the version after


def differs(before: int, after: int) -> bool:
    """Whether two open files differ in more than their change counters, which become the same."""
    _set_counter(after, _counter(before))
    found = change(before, after)
    return bool(found.runs) or found.size_before != found.size_after


def count_on(before: int, after: int) -> None:
    """Make the change counter of `after` follow that of `before`, so that others see that their copies are old."""
    _set_counter(after, _counter(before) + 1)


def _counter(fd: int) -> int:
    return int.from_bytes(os.pread(fd, 4, 24), "big")


def _set_counter(fd: int, value: int) -> None:
    if os.fstat(fd).st_size >= 100:
        for at in _COUNTERS:
            os.pwrite(fd, (value & 0xFFFFFFFF).to_bytes(4, "big"), at)


def change(before: int, after: int) -> Change:
    """Compares two open files."""
    size_before, size_after = os.fstat(before).st_size, os.fstat(after).st_size
    page_size = _page_size(before) or _page_size(after) or 4096
    pages: list[int] = []
    runs: list[tuple[int, int]] = []
    for chunk in range(0, max(size_before, size_after), _CHUNK):
        old, new = os.pread(before, _CHUNK, chunk), os.pread(after, _CHUNK, chunk)
        if old == new:
            continue
        for at in range(0, max(len(old), len(new)), page_size):
            was, now, offset = old[at : at + page_size], new[at : at + page_size], chunk + at
            if was == now:
                continue
            if was and offset // page_size != _PENDING_BYTE // page_size:
                pages.append(offset // page_size)
            if now and runs and sum(runs[-1]) == offset and runs[-1][1] < _CHUNK:
                runs[-1] = (runs[-1][0], runs[-1][1] + len(now))
            elif now:
                runs.append((offset, len(now)))
    return Change(page_size, size_before, size_after, pages, runs)


def journal(change: Change, before: int) -> Iterator[bytes]:
    """The journal's content; the old pages are read from `before`."""
    nonce = os.urandom(4)
    header = struct.pack(
        ">8sI4sIII",
        _MAGIC,
        len(change.pages),
        nonce,
        change.size_before // change.page_size,
        _SECTOR,
        change.page_size,
    )
    yield header.ljust(_SECTOR, b"\0")
    start = int.from_bytes(nonce, "big")
    for page in change.pages:
        content = os.pread(before, change.page_size, page * change.page_size)
        checksum = start + sum(content[change.page_size - 200 : 0 : -200])
        yield struct.pack(">I", page + 1) + content + struct.pack(">I", checksum & 0xFFFFFFFF)


def _page_size(fd: int) -> int:
    """0 for an empty file."""
    size = int.from_bytes(os.pread(fd, 2, 16), "big")
    return 65536 if size == 1 else size
