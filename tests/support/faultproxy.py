"""A TCP proxy that can delay, split, drop or damage bytes, and reset connections.

As a module: `with FaultProxy("127.0.0.1", 7071) as proxy: ... proxy.port ... proxy.swallow()`. Faults can be changed
while connections are open. As a program: `python -m support.faultproxy 127.0.0.1:7071 --delay-ms 5`.
"""

import argparse
import asyncio
import contextlib
import enum
import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

_READ_BYTES = 1 << 18
_FOREVER = 1e9


class Way(enum.Enum):
    """The direction of bytes: OUT from the client of the proxy, or BACK to that client."""

    OUT = "out"
    BACK = "back"


@dataclass(frozen=True)
class Line:
    """The effect of a network on a TCP connection whose bytes all arrive in order.

    A lost segment delays all later ones until its retransmission, and so does a segment out of order. A program can see
    only times, and the lengths of its reads.
    """

    delay_ms: float = 0.0
    # The maximum of an additional random delay of each piece, so that connections overtake each other.
    jitter_ms: float = 0.0
    # The number of pieces in a thousand that wait for `again_ms`, and delay all pieces after them.
    lost_permille: float = 0.0
    again_ms: float = 200.0
    # The maximum size of a piece, of random size from 1 on; 0: pieces stay as they come.
    piece_bytes: int = 0
    # The bandwidth of all connections together in each direction; 0: no limit.
    megabits: float = 0.0


class _Records:
    """Finds bytes of a TLS stream that no peer checks: the second byte of each record's version (RFC 8446, 5.1)."""

    def __init__(self) -> None:
        self._head, self._body = b"", 0

    def unread(self, data: bytes) -> set[int]:
        found: set[int] = set()
        at = 0
        while at < len(data):
            if self._body:
                step = min(self._body, len(data) - at)
                self._body -= step
                at += step
                continue
            self._head += data[at : at + 1]
            if len(self._head) == 3:
                found.add(at)
            if len(self._head) == 5:
                self._head, self._body = b"", int.from_bytes(self._head[3:])
            at += 1
        return found


@dataclass
class _Damage:
    """The number of bytes before the damaged one in each direction. Without a number, no byte is damaged."""

    bytes_left: dict[Way, int] = field(default_factory=dict)
    # Only for a connection that is TLS from its first byte on.
    records: dict[Way, _Records] = field(default_factory=dict)

    def damaged(self, way: Way, data: bytes) -> bytes:
        """Returns `data`, with one bit flipped if it contains the byte to damage."""
        unread = self.records[way].unread(data) if way in self.records else set()
        left = self.bytes_left.pop(way, None)
        if left is None:
            return data
        left += left in unread
        if left >= len(data):
            self.bytes_left[way] = left - len(data)
            return data
        return data[:left] + bytes([data[left] ^ 0x40]) + data[left + 1 :]


@dataclass
class _Faults:
    """The faults of all connections of a proxy."""

    lines: dict[Way, Line] = field(default_factory=lambda: dict.fromkeys(Way, Line()))
    # The time when the last byte in flight will have left.
    free_at: dict[Way, float] = field(default_factory=lambda: dict.fromkeys(Way, 0.0))
    chance: random.Random = field(default_factory=lambda: random.Random(1))
    swallowed: set[Way] = field(default_factory=set)
    damage: _Damage = field(default_factory=_Damage)
    # For the next connection.
    next_damage: _Damage = field(default_factory=_Damage)
    # The bytes that replace others in each direction, once, where both come in one piece.
    replaced: dict[Way, tuple[bytes, bytes]] = field(default_factory=dict)
    refuses: bool = False
    # The number of bytes of a new connection, both ways together, before it is reset; 0: no limit.
    carries: int = 0
    # `carries` is only for connections whose first four bytes are one of these; empty: all.
    cut_heads: tuple[bytes, ...] = ()
    # Only connections whose first four bytes are one of these are accepted; empty: all.
    heads: tuple[bytes, ...] = ()

    def pieces(self, way: Way, data: bytes) -> Iterator[bytes]:
        most = self.lines[way].piece_bytes
        if not most or not data:
            yield data
            return
        at = 0
        while at < len(data):
            size = self.chance.randint(1, most)
            yield data[at : at + size]
            at += size

    def with_replaced(self, way: Way, data: bytes) -> bytes:
        old, new = self.replaced.get(way, (b"", b""))
        if not old or old not in data:
            return data
        del self.replaced[way]
        return data.replace(old, new, 1)

    def due(self, way: Way, count: int, now: float) -> float:
        """Returns the arrival time of a piece that comes now, without regard to earlier pieces of its connection."""
        line = self.lines[way]
        if line.megabits:
            now = max(now, self.free_at[way]) + count * 8 / (line.megabits * 1e6)
            self.free_at[way] = now
        late = line.delay_ms + line.jitter_ms * self.chance.random()
        if line.lost_permille and self.chance.random() * 1000 < line.lost_permille:
            late += line.again_ms
        return now + late / 1000


class _Left:
    """The number of bytes that a connection still carries before it is reset."""

    def __init__(self, count: int) -> None:
        self._count = count or None

    def take(self, data: bytes) -> bytes:
        if self._count is None:
            return data
        data = data[: self._count]
        self._count -= len(data)
        return data

    @property
    def nothing(self) -> bool:
        return self._count == 0


class FaultProxy:
    """Listens on a loopback address and forwards connections to a target, in a thread of its own.

    An appliance sends its clients the number of the data port, not the host. So proxies before an appliance listen on
    the same two ports of another loopback address.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        listen_host: str = "127.0.0.1",
        listen_port: int = 0,
        delay_ms: float = 0.0,
        tap: Callable[[bytes], None] = lambda _: None,
    ) -> None:
        """Opens the listening socket. `tap` gets all bytes of both directions as they come."""
        self._target = (host, port)
        self._listener = socket.create_server((listen_host, listen_port))
        self.port: int = self._listener.getsockname()[1]
        self._tap = tap
        self._faults = _Faults()
        self._connections: set[asyncio.StreamWriter] = set()
        # The number of forwarded connections, and of directions in which a connection lost bytes.
        self.made = 0
        self.silenced = 0
        self._loop = asyncio.new_event_loop()
        self._ended = asyncio.Event()
        self._moves = asyncio.Event()
        self._moves.set()
        self._thread = threading.Thread(target=self._run, name="fault proxy", daemon=True)
        self.delay(delay_ms)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._do(self._ended.set)
        self._thread.join()

    def delay(self, milliseconds: float, *ways: Way) -> None:
        """Delays bytes, in order and at full bandwidth; in both directions if none is given."""
        self.behave(Line(delay_ms=milliseconds), *ways)

    def behave(self, line: Line, *ways: Way) -> None:
        """Applies the faults of a line from now on; in both directions if none is given."""
        for way in ways or Way:
            self._faults.lines[way] = line

    def swallow(self, *ways: Way) -> None:
        """Drops all bytes from now on without closing, like a dead network; in both directions if none is given."""
        self._faults.swallowed.update(ways or Way)

    def carry(self) -> None:
        """Stops dropping bytes. Connections that have lost bytes stay silent."""
        self._faults.swallowed.clear()

    def stand_still(self) -> None:
        """Stops reading: the buffers of senders fill up, and no byte is lost."""
        self._do(self._moves.clear)

    def go_on(self) -> None:
        """Reads again after `stand_still`."""
        self._do(self._moves.set)

    def replace_once(self, way: Way, old: bytes, new: bytes) -> None:
        """Replaces the first `old` that comes in one piece by `new`, which has as many bytes."""
        self._faults.replaced[way] = (old, new)

    def damage(self, way: Way, after_bytes: int = 0) -> None:
        """Flips one bit of the byte after the next `after_bytes` bytes of all connections."""
        self._faults.damage.bytes_left[way] = after_bytes

    def damage_next(self, way: Way, after_bytes: int = 0, *, tls: bool = False) -> None:
        """Damages a byte of the next connection. With `tls` it is a byte that the peer checks."""
        records = {each: _Records() for each in Way} if tls else {}
        self._faults.next_damage = _Damage({way: after_bytes}, records)

    def cut(self) -> None:
        """Resets all connections. Accepts new ones."""
        self._do(self._reset_connections)

    def cut_after(self, count: int, *heads: bytes) -> None:
        """Resets each new connection after `count` bytes; 0: no more resets.

        With `heads`, only connections whose first four bytes are one of them.
        """
        self._faults.carries, self._faults.cut_heads = count, heads

    def refuse(self) -> None:
        """Resets each new connection at once from now on."""
        self._faults.refuses = True

    def accept(self, *heads: bytes) -> None:
        """Accepts connections again; with `heads`, only those whose first four bytes are one of them."""
        self._faults.refuses, self._faults.heads = False, heads

    def _do(self, action: Callable[[], None]) -> None:
        done = threading.Event()

        def act() -> None:
            action()
            done.set()

        self._loop.call_soon_threadsafe(act)
        done.wait()

    def _reset_connections(self) -> None:
        for writer in self._connections:
            # Closing with a linger time of 0 sends RST instead of FIN.
            connection = writer.get_extra_info("socket")
            if connection.fileno() < 0:  # its transport has closed it, and its task has not run since
                continue
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    def _run(self) -> None:
        # The runner cancels all tasks at its end, then closes the loop.
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        passing: set[asyncio.Task[None]] = set()

        def start(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(self._pass_connection(reader, writer))
            passing.add(task)
            task.add_done_callback(passing.discard)

        server = await asyncio.start_server(start, sock=self._listener, limit=_READ_BYTES)
        await self._ended.wait()
        server.close()
        self._reset_connections()

    async def _pass_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = b""
        try:
            if self._faults.heads or self._faults.cut_heads:
                head = await reader.readexactly(4)
        except (OSError, asyncio.IncompleteReadError):
            pass
        if self._faults.refuses or (self._faults.heads and head not in self._faults.heads):
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target, limit=_READ_BYTES)
        except OSError:
            writer.transport.abort()
            return
        self.made += 1
        damage, self._faults.next_damage = self._faults.next_damage, _Damage()
        cut = not self._faults.cut_heads or head in self._faults.cut_heads
        left = _Left(self._faults.carries if cut else 0)
        head = left.take(head)
        pair = {writer, far_writer}
        self._connections |= pair
        for end in pair:
            end.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        far_writer.write(head)
        self._tap(head)
        try:
            async with asyncio.TaskGroup() as ways:
                ways.create_task(self._pass_bytes(Way.OUT, reader, far_writer, damage, left))
                ways.create_task(self._pass_bytes(Way.BACK, far_reader, writer, damage, left))
        except* OSError:
            pass
        finally:
            self._connections -= pair
            for end in pair:
                end.transport.abort() if self._ended.is_set() or left.nothing else end.close()

    async def _pass_bytes(
        self, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, damage: _Damage, left: _Left
    ) -> None:
        """Forwards one direction. A second task waits for the time of each piece, so a delay costs no bandwidth."""
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=1024)

        async def deliver() -> None:
            while True:
                due, data = await pieces.get()
                await asyncio.sleep(max(0.0, due - self._loop.time()))
                if way in self._faults.swallowed:
                    self.silenced += 1
                    await asyncio.sleep(_FOREVER)
                if not data:
                    break
                writer.write(data)
                await writer.drain()
            with contextlib.suppress(OSError):
                writer.write_eof()

        delivery = asyncio.create_task(deliver())
        last = 0.0
        try:
            data = b"-"
            while data:
                await self._moves.wait()
                data = left.take(await reader.read(_READ_BYTES))
                self._tap(data)
                data = damage.damaged(way, self._faults.damage.damaged(way, data))
                data = self._faults.with_replaced(way, data)
                for piece in self._faults.pieces(way, data):
                    last = max(last, self._faults.due(way, len(piece), self._loop.time()))
                    await pieces.put((last, piece))
                if left.nothing:
                    await pieces.put((last, b""))
                    await delivery
                    raise ConnectionResetError
            await delivery
        finally:
            delivery.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(description="a TCP proxy that delays what passes through it")
    parser.add_argument("target", help="HOST:PORT")
    parser.add_argument("--listen-port", type=int, default=0)
    parser.add_argument("--delay-ms", type=float, default=0.0, help="each way")
    options = parser.parse_args()
    host, _, port = options.target.rpartition(":")
    with FaultProxy(host, int(port), listen_port=options.listen_port, delay_ms=options.delay_ms) as proxy:
        print(f"127.0.0.1:{proxy.port}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


if __name__ == "__main__":
    main()
