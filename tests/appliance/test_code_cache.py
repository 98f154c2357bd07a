"""Device code that an appliance keeps for later sessions."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from io import FileIO

import pytest

from remotegpu.appliance.code_cache import CodeCache

ALL = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
MIB = 1 << 20


Image = Callable[..., tuple[str, FileIO]]


@pytest.fixture
def image() -> Iterator[Image]:
    """Makes files as workers offer them."""
    with contextlib.ExitStack() as stack:

        def make(content: bytes, seals: int = ALL) -> tuple[str, FileIO]:
            descriptor = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            file = stack.enter_context(contextlib.closing(FileIO(descriptor, "r+b")))
            file.write(content)
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
            return hashlib.sha256(content).hexdigest(), file

        yield make


def test_one_tenant_never_sees_the_code_of_another(image: Image) -> None:
    cache = CodeCache(8 * MIB)
    name, file = image(b"code")
    cache.offer("alice", name, file)
    assert cache.find("alice", name) is file
    assert cache.find("bob", name) is None
    assert cache.find("", name) is None


def test_what_nobody_asked_for_longest_goes_first_and_one_tenant_has_half(image: Image) -> None:
    cache = CodeCache(8 * MIB)
    names = []
    for number in range(4):
        name, file = image(bytes([number]) * MIB)
        names.append(name)
        cache.offer("alice", name, file)
    assert cache.find("alice", names[0]) is not None
    more, file = image(b"x" * 2 * MIB)
    cache.offer("alice", more, file)
    assert [cache.find("alice", name) is not None for name in (*names, more)] == [True, False, False, True, True]
    for tenant in ("bob", "carol"):
        name, file = image(tenant.encode() * MIB)
        cache.offer(tenant, name, file)
    assert cache.bytes <= 8 * MIB, "in all"


@pytest.mark.parametrize("missing", [fcntl.F_SEAL_WRITE, fcntl.F_SEAL_GROW, fcntl.F_SEAL_SHRINK, fcntl.F_SEAL_SEAL])
def test_a_file_that_could_be_changed_is_not_kept(missing: int, image: Image) -> None:
    cache = CodeCache(8 * MIB)
    name, file = image(b"code", ALL & ~missing)
    cache.offer("alice", name, file)
    assert cache.find("alice", name) is None
    assert file.closed


def test_nothing_is_kept_that_is_no_image(image: Image) -> None:
    cache = CodeCache(2 * MIB)
    for name, file in (
        ("../" + "0" * 61, image(b"code")[1]),
        image(b""),
        image(b"x" * (MIB + 1)),
        ("0" * 64, FileIO(os.open(os.devnull, os.O_RDONLY))),
    ):
        cache.offer("alice", name, file)
        assert cache.find("alice", name) is None
        assert file.closed
    name, file = image(b"code")
    CodeCache(0).offer("alice", name, file)
    assert file.closed
