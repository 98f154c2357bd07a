"""Device code that an appliance keeps for later sessions."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from io import FileIO

import pytest

from remotegpu.appliance.sessions import code_cache
from remotegpu.appliance.sessions.code_cache import CodeCache

MIB = 1 << 20
NewCache = Callable[[int], CodeCache]


@pytest.fixture
def new_cache() -> Iterator[NewCache]:
    with contextlib.ExitStack() as stack:
        yield lambda size: stack.enter_context(contextlib.closing(CodeCache(size)))


def pipe() -> tuple[FileIO, FileIO]:
    """Makes a pipe as a worker does: the end that it hands over, and its own end."""
    theirs, ours = os.pipe()
    return FileIO(theirs), FileIO(ours, "w")


async def offer(cache: CodeCache, tenant: str, content: bytes, *, size: int | None = None) -> str:
    name = hashlib.sha256(content).hexdigest()
    theirs, ours = pipe()

    def send() -> None:
        # The appliance closes its end if it does not want the image.
        with ours, contextlib.suppress(BrokenPipeError):
            ours.write(content)

    offered = cache.offer(tenant, name, len(content) if size is None else size, theirs)
    await asyncio.gather(offered, asyncio.to_thread(send))
    assert theirs.closed
    return name


def content_of(file: FileIO | None) -> bytes:
    assert file is not None
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0)


def test_one_tenant_never_sees_the_code_of_another(new_cache: NewCache) -> None:
    cache = new_cache(8 * MIB)
    name = asyncio.run(offer(cache, "alice", b"code"))
    assert content_of(cache.find("alice", name)) == b"code"
    assert cache.find("bob", name) is None
    assert cache.find("", name) is None


def test_the_code_of_one_tenant_is_for_all_if_the_administrator_says_so() -> None:
    with contextlib.closing(CodeCache(8 * MIB, public="common")) as cache:
        name, secret = (asyncio.run(offer(cache, *each)) for each in (("common", b"code"), ("alice", b"her own")))
        assert content_of(cache.find("alice", name)) == content_of(cache.find("bob", name)) == b"code"
        assert cache.find("bob", secret) is cache.find("common", secret) is None


def test_what_nobody_asked_for_longest_goes_first_and_one_tenant_has_half(new_cache: NewCache) -> None:
    cache = new_cache(8 * MIB)
    names = [asyncio.run(offer(cache, "alice", bytes([number]) * MIB)) for number in range(4)]
    assert cache.find("alice", names[0]) is not None
    more = asyncio.run(offer(cache, "alice", b"x" * 2 * MIB))
    assert [cache.find("alice", name) is not None for name in (*names, more)] == [True, False, False, True, True]
    for tenant in ("bob", "carol"):
        asyncio.run(offer(cache, tenant, tenant.encode() * MIB))
    assert cache.bytes <= 8 * MIB, "in all"


def test_what_comes_is_kept_in_a_file_that_nobody_can_change(new_cache: NewCache) -> None:
    cache, content = new_cache(8 * MIB), os.urandom(3 * MIB)
    file = cache.find("alice", asyncio.run(offer(cache, "alice", content)))
    assert content_of(file) == content
    assert file is not None
    assert fcntl.fcntl(file, fcntl.F_GET_SEALS) == (
        fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
    )


@pytest.mark.parametrize("size", [0, -1, 5, MIB + 1])
def test_nothing_is_kept_of_a_worker_that_does_not_send_what_it_said(new_cache: NewCache, size: int) -> None:
    cache = new_cache(2 * MIB)
    name = asyncio.run(offer(cache, "alice", b"code", size=size))
    assert (cache.find("alice", name), cache.bytes) == (None, 0)


def test_nothing_is_kept_of_a_worker_that_sends_nothing(new_cache: NewCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_cache, "_ARRIVES_WITHIN", 0.05)
    cache, (theirs, ours) = new_cache(2 * MIB), pipe()
    with ours:
        asyncio.run(cache.offer("alice", "0" * 64, 100, theirs))
    assert (cache.find("alice", "0" * 64), cache.bytes, theirs.closed) == (None, 0, True)


def test_nothing_is_kept_that_is_no_image(new_cache: NewCache) -> None:
    cache = new_cache(2 * MIB)
    theirs, ours = pipe()
    with ours:
        for name, file in (("../" + "0" * 61, theirs), ("0" * 64, FileIO(os.open(os.devnull, os.O_RDONLY)))):
            asyncio.run(cache.offer("alice", name, 4, file))
            assert (cache.find("alice", name), file.closed) == (None, True)
    nothing = new_cache(0)
    assert nothing.find("alice", asyncio.run(offer(nothing, "alice", b"code"))) is None


def test_an_image_that_has_to_make_room_while_it_arrives_is_not_kept(new_cache: NewCache) -> None:
    async def scene() -> None:
        cache, (theirs, ours) = new_cache(2 * MIB), pipe()
        with ours:
            arriving = asyncio.create_task(cache.offer("alice", "0" * 64, MIB, theirs))
            await asyncio.sleep(0)
            other = await offer(cache, "alice", b"y" * MIB)
            await arriving
        assert cache.find("alice", "0" * 64) is None
        assert content_of(cache.find("alice", other)) == b"y" * MIB
        assert cache.bytes == MIB

    asyncio.run(scene())


def test_what_is_on_its_way_and_has_to_make_room_is_held_no_longer(new_cache: NewCache) -> None:
    """A compromised worker begins one image after another, and ends none."""

    async def scenario() -> None:
        cache, ends, offers = new_cache(4 * MIB), [], []
        for number in range(20):
            theirs, ours = pipe()
            ends.append(ours)
            offers.append(asyncio.create_task(cache.offer("alice", f"{number:064x}", 2 * MIB, theirs)))
            await asyncio.sleep(0)
            ours.write(b"x" * 4096)
        await asyncio.wait(offers[:-1], timeout=20)
        assert [offer.done() for offer in offers] == [*([True] * 19), False], "one at a time has room"
        assert cache.bytes <= 2 * MIB
        for end in ends:
            end.close()
        await offers[-1]

    asyncio.run(scenario())
