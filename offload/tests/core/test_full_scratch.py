"""A session whose scratch folder is full or read-only: the program has the error, and no byte that the file lacks."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from support.small_disk import small_disk

from remotegpu_offload.files.cache import BLOCK, Cache

CONTENT = bytes(range(256)) * (BLOCK // 256) * 4


def fetch(offset: int, count: int) -> bytes:
    return CONTENT[offset : offset + count]


def test_a_copy_that_does_not_fit_is_an_error_and_later_right() -> None:
    with small_disk(8) as disk:
        cache = Cache(str(disk.folder), 1 << 30)
        copy = cache.take("file", ["key"], len(CONTENT))
        copy.need(0, BLOCK, fetch)
        disk.fill()
        with pytest.raises(OSError, match="No space") as caught:
            copy.need(0, len(CONTENT), fetch)
        assert caught.value.errno == errno.ENOSPC
        assert not copy.complete
        disk.make_room()
        copy.need(0, len(CONTENT), fetch)
        assert copy.complete
        assert Path(copy.path).read_bytes() == CONTENT
        cache.give_back(copy)


@pytest.mark.parametrize("how", ["full", "read-only"])
def test_where_no_copy_can_be_made_the_folder_is_named(how: str) -> None:
    with small_disk(8) as disk:
        cache = Cache(str(disk.folder), 1 << 30)
        disk.harm(how)
        with pytest.raises(OSError, match=str(disk.folder)):
            cache.take("file", ["key"], len(CONTENT))
        disk.mend(how)
        copy = cache.take("file", ["key"], len(CONTENT))
        copy.need(0, len(CONTENT), fetch)
        assert Path(copy.path).read_bytes() == CONTENT
        cache.give_back(copy)
