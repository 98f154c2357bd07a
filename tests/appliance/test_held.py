"""Huge pages count as what a process holds, though no other figure of the kernel has them."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.system import MIB

from remotegpu.appliance.machine.held import held_by

PAGE = 2 * MIB
PAGES = 16
MORE = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_overcommit_hugepages")
LOCK = Path(tempfile.gettempdir(), "remotegpu-test-huge-pages")
HUGE_2MB = 21 << 26  # memfd_create(2), mmap(2)
MAP_HUGETLB = 0x40000


@pytest.fixture
def alone() -> Iterator[None]:
    """One test at a time on this machine: each puts the machine's number back, which others count on."""
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(autouse=True)
def huge_pages(alone: None) -> Iterator[None]:
    """The machine has some for as long as the test runs."""
    try:
        before = MORE.read_text()
        MORE.write_text(str(int(before) + 2 * PAGES))
    except OSError as error:
        pytest.skip(f"this machine gives no huge pages ({error.strerror}): run it as root, with /sys writable")
    try:
        yield
    finally:
        MORE.write_text(before)


def held() -> int:
    return held_by(os.getpid(), children=True).bytes


def mapped(file: int, flags: int) -> mmap.mmap:
    """All of it is there."""
    memory = mmap.mmap(file, PAGES * PAGE, flags=flags)
    for at in range(0, PAGES * PAGE, PAGE):
        memory[at] = 1
    return memory


def is_seen(before: int, times: int = 1) -> bool:
    return before + times * PAGES * PAGE - 20 * MIB <= held() <= before + times * PAGES * PAGE + 20 * MIB


def test_a_file_of_huge_pages_counts_mapped_or_not() -> None:
    before = held()
    file = os.memfd_create("test", os.MFD_HUGETLB | HUGE_2MB)
    try:
        os.truncate(file, PAGES * PAGE)
        with mapped(file, mmap.MAP_SHARED):
            assert is_seen(before), "open and mapped, once"
        assert is_seen(before), "open, and not mapped"
    finally:
        os.close(file)
    assert held() < before + 20 * MIB


@pytest.mark.parametrize("kind", [mmap.MAP_PRIVATE, mmap.MAP_SHARED], ids=["private", "shared"])
def test_huge_pages_without_a_file_count(kind: int) -> None:
    before = held()
    with mapped(-1, kind | mmap.MAP_ANONYMOUS | MAP_HUGETLB | HUGE_2MB):
        assert is_seen(before)
    assert held() < before + 20 * MIB


def test_a_file_of_huge_pages_that_is_mapped_and_closed_counts() -> None:
    before = held()
    file = os.memfd_create("test", os.MFD_HUGETLB | HUGE_2MB)
    os.truncate(file, PAGES * PAGE)
    with contextlib.closing(mapped(file, mmap.MAP_SHARED)):
        os.close(file)
        assert is_seen(before)


def test_what_is_written_privately_counts_beside_the_file() -> None:
    """Each mapping has pages of its own then. What is only read is the file's."""
    before = held()
    file = os.memfd_create("test", os.MFD_HUGETLB | HUGE_2MB)
    try:
        os.truncate(file, PAGES * PAGE)
        with mapped(file, mmap.MAP_SHARED) as whole, mmap.mmap(file, PAGES * PAGE, flags=mmap.MAP_PRIVATE) as own:
            assert sum(own[at] for at in range(0, PAGES * PAGE, PAGE)) == PAGES, "what stands in the file is read"
            assert is_seen(before)
            for at in range(0, PAGES * PAGE, PAGE):
                own[at] = 2
            assert whole[0] == 1
            assert is_seen(before, 2)
    finally:
        os.close(file)


def test_a_file_that_is_written_privately_alone_counts() -> None:
    before = held()
    file = os.memfd_create("test", os.MFD_HUGETLB | HUGE_2MB)
    try:
        os.truncate(file, PAGES * PAGE)
        with mapped(file, mmap.MAP_SHARED):
            pass
        with mapped(file, mmap.MAP_PRIVATE):
            assert is_seen(before, 2), "its pages, and copies of all of them"
        assert is_seen(before)
    finally:
        os.close(file)
