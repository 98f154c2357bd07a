"""A plugin that ends hands the kubelet's connections to the plugin that takes its place.

A kubelet before kubernetes/kubernetes#135437 takes the end of any stream of a resource for the end of the one that
registered last: it closes that one's connection, and pods that start are turned away until it has registered again. So
the streams of a plugin that ends must not end: its successor registers again, so that the kubelet asks the successor
from now on. The successor then holds the old connections open and sends nothing on them, until the kubelet itself
closes them.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Final

_log = logging.getLogger(__name__)

_PREFIX: Final = "successor-"
_HELD: Final = b"held"
# A registration is two calls between processes of one node.
_ANSWER_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.2
_YOUNG_SECONDS: Final = 10.0
# Linux passes no more in one message (SCM_MAX_FD is 253). A plugin adds four, until the kubelet starts again.
_MOST: Final = 250


class Successor:
    """Takes over from plugins that end, while `serve` runs."""

    def __init__(self, folder: Path, instance: str, register: Callable[[], Awaitable[None]]) -> None:
        self.path = folder / f"{_PREFIX}{instance}.sock"
        self._register = register
        self._held: set[socket.socket] = set()

    async def serve(self) -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            try:
                remove_dead(self.path.parent.glob(f"{_PREFIX}*.sock"))
                listener.bind(str(self.path))
            except OSError as error:
                _log.warning(
                    "no other plugin can hand over to this one: %s cannot be made (%s); while plugins of this node are "
                    "updated, pods may be turned away; make room on the node's disk, or make it writable",
                    self.path,
                    error.strerror,
                )
                return
            listener.listen()
            listener.setblocking(False)
            try:
                while True:
                    connection, _ = await asyncio.get_running_loop().sock_accept(listener)
                    with connection:
                        try:
                            await self._take_over(connection)
                        except Exception:
                            _log.exception("a plugin that ends cannot hand over; it tries again")
            finally:
                self.path.unlink(missing_ok=True)

    async def _take_over(self, connection: socket.socket) -> None:
        connection.settimeout(_ANSWER_SECONDS)
        _, descriptors, _, _ = await asyncio.to_thread(socket.recv_fds, connection, 1, _MOST)
        if not descriptors:
            return  # only a probe whether this plugin is alive (`remove_dead`)
        taken = [socket.socket(fileno=descriptor) for descriptor in descriptors]
        await self._register()
        for each in taken:
            self._hold(each)
        await asyncio.to_thread(connection.sendall, _HELD)
        _log.info("took over from a plugin that ends: %d connections of the kubelet are held open", len(taken))

    def _hold(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._held.add(connection)
        asyncio.get_running_loop().add_reader(connection, self._unless_closed, connection)

    def _unless_closed(self, connection: socket.socket) -> None:
        """Discards what the kubelet still sends on an old connection, and closes the connection at EOF."""
        try:
            gone = not connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            gone = True
        if gone:
            asyncio.get_running_loop().remove_reader(connection)
            self._held.discard(connection)
            connection.close()


async def hand_over(folder: Path, sockets: Path, seconds: float) -> bool:
    """Gives the kubelet's connections of this process to another plugin of the node; False if none took them in time.

    `sockets` is the folder in which plugins listen. After True the process must end without closing what it has open:
    gRPC shuts connections down for all who hold them.
    """
    until = asyncio.get_running_loop().time() + seconds
    connections = [each for each in _connections() if Path(each.getsockname()).parent == sockets]
    try:
        told = False
        while connections:
            for path in _successors(folder):
                if await asyncio.to_thread(_given, path, connections[:_MOST]):
                    return True
            if asyncio.get_running_loop().time() >= until:
                break
            if not told:
                _log.info("waits for its successor, %.0f s at most", seconds)
                told = True
            await asyncio.sleep(_LOOK_SECONDS)
        return False
    finally:
        for each in connections:
            each.close()


def _given(successor: Path, connections: list[socket.socket]) -> bool:
    with socket.socket(socket.AF_UNIX) as to:
        to.settimeout(2 * _ANSWER_SECONDS)
        try:
            to.connect(str(successor))
            socket.send_fds(to, [b"x"], [each.fileno() for each in connections])
            return to.recv(len(_HELD)) == _HELD
        except OSError as error:
            _log.warning("%s does not take over: %s", successor, error)
            return False


def _connections() -> list[socket.socket]:
    """Returns this process's connected or bound Unix sockets that have a name and do not listen, each as a duplicated
    descriptor."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            each = socket.socket(fileno=os.dup(int(entry.name)))
        except OSError:
            continue  # not a socket, or the descriptor of this listing
        listens = each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if each.family == socket.AF_UNIX and each.getsockname() and not listens:
            found.append(each)
        else:
            each.close()
    return found


def _successors(folder: Path) -> list[Path]:
    """Lists the sockets of successors, newest first."""
    return sorted(folder.glob(f"{_PREFIX}*.sock"), key=_made, reverse=True)


def _made(path: Path) -> float:
    """Returns the modification time in seconds since 1970; the current time if the file is gone."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return time.time()


def remove_dead(paths: Iterable[Path]) -> None:
    """Removes the sockets that a killed process left. It spares a young one, whose process may be about to listen."""
    for path in paths:
        if time.time() - _made(path) < _YOUNG_SECONDS:
            continue
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
            except OSError:
                continue
