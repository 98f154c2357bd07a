"""Orders to the programs that an appliance starts: none is lost because its receiver is slow, none that is too long
ends anybody, and no descriptor stays open.
"""

from __future__ import annotations

import asyncio
import functools
import os
import socket
from collections.abc import Callable, Coroutine
from io import FileIO
from pathlib import Path
from typing import ParamSpec

import pytest
from support.crowded_gateway import crowded_gateway
from support.system import DIST

from remotegpu.appliance.gateway import Gateway, Restarted
from remotegpu.appliance.packets import MAX_PACKET, Packet, PacketChannel, packet_pair

P = ParamSpec("P")
# More than a socket holds.
MANY = 3000


def in_a_loop(test: Callable[P, Coroutine[object, object, None]]) -> Callable[P, None]:
    @functools.wraps(test)
    def run(*arguments: P.args, **named: P.kwargs) -> None:
        asyncio.run(test(*arguments, **named))

    return run


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - descriptors and packets set no event
            await asyncio.sleep(0)


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def channel(sock: socket.socket, most_waiting: int = MANY) -> tuple[PacketChannel, list[Packet], list[bool]]:
    """With what it receives, and whether its other end was found gone."""
    received: list[Packet] = []
    closed: list[bool] = []

    def receive(packet: Packet, file: FileIO | None) -> None:
        received.append(packet if file is None else {**packet, "file": True})
        if file is not None:
            file.close()

    made = PacketChannel(sock, receive, lambda: closed.append(True), most_waiting=most_waiting)
    return made, received, closed


@in_a_loop
async def test_a_receiver_that_is_slow_gets_all_orders_in_order_with_their_descriptors() -> None:
    ours, theirs = packet_pair()
    sender, _, closed = channel(ours)
    before = open_descriptors()
    for number in range(MANY):
        file = os.open(os.devnull, os.O_RDONLY)
        sender.send({"op": "number", "number": number}, (file,) if number % 10 == 0 else ())
        os.close(file)
    assert sender.waits
    receiver, received, _ = channel(theirs)
    await until(lambda: len(received) == MANY)
    assert [packet["number"] for packet in received] == list(range(MANY))
    assert [packet["number"] for packet in received if "file" in packet] == list(range(0, MANY, 10))
    assert (sender.waits, closed, open_descriptors()) == (False, [], before)
    sender.close()
    receiver.close()


@in_a_loop
async def test_one_that_reads_nothing_is_gone_and_nothing_stays_open() -> None:
    before = open_descriptors()
    ours, theirs = packet_pair()
    sender, _, closed = channel(ours, most_waiting=10)
    while not sender.closed:
        file = os.open(os.devnull, os.O_RDONLY)
        sender.send({"op": "number"}, (file,))
        os.close(file)
    assert closed == [True]
    theirs.close()
    assert open_descriptors() == before


@pytest.mark.parametrize("size", [MAX_PACKET, 230_000, 4 << 20])
@in_a_loop
async def test_an_order_that_is_too_long_is_refused_by_itself(size: int, caplog: pytest.LogCaptureFixture) -> None:
    ours, theirs = packet_pair()
    sender, _, closed = channel(ours)
    sender.send({"op": "moved", "to": "x" * size})
    sender.send({"op": "next"})
    receiver, received, _ = channel(theirs)
    await until(lambda: received)
    assert (received, closed) == ([{"op": "next"}], [])
    assert "it is not sent" in caplog.text and "x" * 100 not in caplog.text
    sender.close()
    receiver.close()


@pytest.mark.parametrize("packet", [b'{"op": "export"}', b"no json"])
@in_a_loop
async def test_a_descriptor_that_is_no_file_ends_the_channel_and_is_closed(packet: bytes, tmp_path: Path) -> None:
    before = open_descriptors()
    ours, theirs = packet_pair()
    reader, received, closed = channel(ours)
    folder = os.open(tmp_path, os.O_RDONLY)
    socket.send_fds(theirs, [packet], [folder])
    os.close(folder)
    await until(lambda: closed)
    theirs.close()
    assert (received, reader.closed, open_descriptors()) == ([], True, before)


@in_a_loop
async def test_a_gateway_that_is_killed_is_told_all_anew(tmp_path: Path) -> None:
    """How soon it is back is a figure in docs/benchmarks.md."""
    async with asyncio.timeout(60), crowded_gateway(tmp_path) as crowded:
        port = crowded.gateway.port
        # Killed, and again while it is being told.
        await crowded.kill()
        await crowded.kill()
        await crowded.gateway.synced()
        assert not crowded.gateway.failed.done() and crowded.gateway.port == port
        assert sum(isinstance(event, Restarted) for event in crowded.events) == 2
        for worker in crowded.workers.values():
            # Nobody has closed a session's socket.
            worker.setblocking(False)
            with pytest.raises(BlockingIOError):
                worker.recv(1)
        new = "ef" * 16
        crowded.admit(new)
        await crowded.connect(new)


@in_a_loop
async def test_a_gateway_outlives_an_order_that_is_too_long(tmp_path: Path) -> None:
    gateway = Gateway(DIST / "bin" / "remotegpu-gateway", None, tmp_path / "service")
    await gateway.start("127.0.0.1", 0, 0, lambda event: None)
    pid = gateway.pid
    gateway.moved("ab" * 16, "cd" * 32, "x" * 230_000)
    async with asyncio.timeout(60):
        await gateway.synced()
    assert gateway.pid == pid and not gateway.failed.done()
    await gateway.stop()
