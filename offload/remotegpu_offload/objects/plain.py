"""Recognises pickles of plain values, which the interpreter's own, much faster unpickler may read.

That unpickler executes every instruction: it would allocate a memo of 32 GiB, or hash a nested tuple until the stack
overflows. Therefore a regular expression checks the pickle first: it may contain only instructions that make numbers,
texts, lists and similar values, and either no tuples or no hashed values.
"""

import re
from typing import Final

# Instructions of a fixed size: FRAME, PROTO; numbers, None, True, False; empty containers; MARK, POP, POP_MARK; APPEND
# and APPENDS of a list; MEMOIZE, BINGET, LONG_BINGET.
# APPEND and APPENDS; MEMOIZE, BINGET, LONG_BINGET.
_FIXED: Final = (
    rb"\x95.{8}", rb"\x80.", rb"G.{8}", rb"K.", rb"M..", rb"J.{4}", rb"[N\x88\x89\])}\x8f(01ae\x94]", rb"h.", rb"j.{4}",
)  # fmt: skip
_TUPLES: Final = rb"[\x85\x86\x87t]"
_HASHED: Final = rb"[su\x90]"
# Instructions with a length: BINUNICODE and BINBYTES in all sizes, and LONG1. The value is the size of the length.
_LENGTHS: Final = {0x8C: 1, 0x43: 1, 0x8A: 1, 0x58: 4, 0x42: 4, 0x8D: 8, 0x8E: 8}
_STOP: Final = 0x2E


def _run(*more: bytes) -> re.Pattern[bytes]:
    return re.compile(rb"(?:" + b"|".join((*_FIXED, *more)) + rb")*+", re.DOTALL)


_EITHER: Final = (_run(_TUPLES), _run(_HASHED))


def is_plain(stream: bytes) -> bool:
    """Returns whether a pickle makes only plain values."""
    return any(_consists(stream, run) for run in _EITHER)


def _consists(stream: bytes, run: re.Pattern[bytes]) -> bool:
    at, end = 0, len(stream)
    while True:
        found = run.match(stream, at)
        assert found is not None  # the pattern also matches an empty text
        at = found.end()
        if at >= end:
            return False
        if stream[at] == _STOP:
            return at == end - 1
        size = _LENGTHS.get(stream[at])
        if size is None:
            return False
        at += 1 + size + int.from_bytes(stream[at + 1 : at + 1 + size], "little")
