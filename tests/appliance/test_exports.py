"""Memory that sessions of a lease share is charged once while any of them holds it; then its file is closed."""

from __future__ import annotations

import json
import os
from io import FileIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remotegpu.appliance.sessions.exports import Exports
from remotegpu.appliance.shares.grants import Quota

LIMIT, SLAB = 100, 10
WORDS = 16


@pytest.fixture
def quota() -> Quota:
    quota = Quota(LIMIT)
    assert quota.grant("a", 4 * SLAB, 4 * SLAB) == 4 * SLAB
    return quota


def opened(folder: Path) -> FileIO:
    path = folder / "page"
    path.write_bytes(bytes(WORDS))
    return FileIO(path, "r+")


def test_memory_counts_once_until_the_last_holder_lets_go(quota: Quota, tmp_path: Path) -> None:
    exports, file = Exports([quota]), opened(tmp_path)
    token = exports.add("a", 0, SLAB, file)
    assert token is not None
    assert (quota.granted["a"], quota.used) == (3 * SLAB, 4 * SLAB)
    assert exports.hold("b", token) is not None
    assert quota.used == 4 * SLAB
    quota.forget("a")
    exports.forget("a")
    assert (quota.used, file.closed) == (SLAB, True)
    assert exports.hold("c", token) is None
    assert not exports.release("c", token)
    assert quota.used == SLAB
    # No other session holds it: it counts until it is overwritten.
    assert exports.release("b", token)
    assert (quota.used, sum(quota.leaving.values())) == (SLAB, SLAB)
    exports.freed("b", token)
    assert (quota.used, len(exports), quota.leaving) == (0, 0, {})


def test_whoever_ends_before_it_has_overwritten_what_nobody_else_has_keeps_nothing(
    quota: Quota, tmp_path: Path
) -> None:
    exports = Exports([quota])
    token = exports.add("a", 0, SLAB, opened(tmp_path))
    assert token is not None
    assert exports.release("a", token)
    assert exports.hold("b", token) is None, "nobody gets what is being overwritten"
    exports.forget("a")
    assert (len(exports), quota.used) == (0, 3 * SLAB)


@pytest.mark.parametrize("size", [4 * SLAB + 1, LIMIT, 1 << 62])
def test_nobody_exports_more_than_was_granted(quota: Quota, tmp_path: Path, size: int) -> None:
    exports, file = Exports([quota]), opened(tmp_path)
    assert exports.add("a", 0, size, file) is None
    assert exports.add("b", 0, SLAB, opened(tmp_path)) is None
    assert (quota.used, file.closed, len(exports)) == (4 * SLAB, True, 0)


def test_descriptors_are_limited(quota: Quota, tmp_path: Path) -> None:
    exports = Exports([quota])
    tokens = [exports.add("a", 0, 0, opened(tmp_path)) for _ in range(300)]
    assert 0 < len(exports) < 300
    assert tokens[len(exports) :] == [None] * (300 - len(exports))
    exports.forget("a")
    assert len(exports) == 0


def test_records_of_a_process_that_ended_are_complete(quota: Quota, tmp_path: Path) -> None:
    exports, file = Exports([quota]), opened(tmp_path)
    other = os.dup(file.fileno())
    token = exports.add("a", 0, 0, file)
    assert token is not None
    exports.hold("b", token)
    exports.forget("b")
    assert os.pread(other, WORDS, 0) == bytes(WORDS)
    exports.forget("a")
    assert os.pread(other, WORDS, 0) == bytes(8) + b"\xff" * 8
    os.close(other)


@given(st.lists(st.tuples(st.sampled_from("hrof"), st.sampled_from("abc"), st.integers(0, 3))))
def test_nothing_stays_when_all_have_ended(steps: list[tuple[str, str, int]]) -> None:
    """h: a session imports one of the exports, r: releases it, o: has overwritten it, f: its process ends."""
    quota = Quota(LIMIT)
    quota.grant("a", 4 * SLAB, 4 * SLAB)
    exports = Exports([quota])
    tokens = [exports.add("a", 0, SLAB, FileIO(os.memfd_create("slab"))) or "" for _ in range(4)]
    for step, session, number in steps:
        does = {"h": exports.hold, "r": exports.release, "o": exports.freed}
        does.get(step, lambda s, _: exports.forget(s))(session, tokens[number])
        assert quota.used == len(exports) * SLAB
    for session in "abc":
        exports.forget(session)
    assert (quota.used, len(exports)) == (0, 0)


def test_what_is_handed_over_goes_on(quota: Quota, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("kept", "let_go")]
    for folder in folders:
        folder.mkdir()
    before, files = Exports([quota]), [opened(folder) for folder in folders]
    kept, let_go = (before.add("a", 0, SLAB, file) for file in files)
    assert kept is not None
    assert let_go is not None
    assert before.hold("b", let_go) is not None
    before.release("a", let_go)
    handed = json.loads(json.dumps(before.handed()))
    assert os.get_inheritable(files[0].fileno())
    after = Exports([quota])
    # The surviving process has the descriptors, and nothing closes them.
    handed[0]["file"] = os.dup(files[0].fileno())
    after.adopt(handed)
    assert not os.get_inheritable(handed[0]["file"])
    assert after.hold("c", let_go) is None, "its exporter has let it go"
    held = after.hold("c", kept)
    assert held is not None
    assert os.path.sameopenfile(held.file.fileno(), files[0].fileno())
    assert quota.used == 4 * SLAB
    assert after.release("b", let_go)
    after.freed("b", let_go)
    assert not after.release("a", kept)
    assert quota.used == 3 * SLAB
    assert after.release("c", kept)
    after.freed("c", kept)
    assert (quota.used, len(after)) == (2 * SLAB, 0)
    files[0].close()
