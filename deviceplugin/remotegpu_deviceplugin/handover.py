"""Handover of the kubelet's connections from a terminating plugin to its successor on the node.

A kubelet before kubernetes/kubernetes#135437 has a bug. When any stream of a resource ends, the kubelet disconnects the
plugin that registered last, and rejects new pods until that plugin registers again. So the streams of a terminating
plugin must stay open:

1. The terminating plugin sends the sockets of its connections to the successor.
2. The successor registers again, so that the kubelet sends new requests to the successor.
3. The successor keeps the old connections open, without sending on them, until the kubelet closes them.
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
# The limit for one step of a handover. A registration is two calls between processes of one node.
_ANSWER_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.2
_YOUNG_SECONDS: Final = 10.0
# The most sockets in one message: SCM_MAX_FD of Linux is 253. Each handover adds four sockets until the kubelet
# restarts.
_MOST: Final = 250


class Successor:
    """Takes over the connections of terminating plugins while `serve` runs.

    `folder` is the folder for successors' sockets. `instance` is a name that no other process uses. `register`
    registers all resources with the kubelet.
    """

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
            return  # `remove_dead` connects to check that this plugin is alive
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
        """Discards data that the kubelet still sends on an old connection, and closes the connection at EOF."""
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
    """Passes this process's kubelet connections to another plugin of the node. Returns False on timeout.

    `folder` has the successors' sockets, `sockets` the sockets on which plugins listen. The timeout is in `seconds`.
    After True the process must exit without closing its connections: gRPC would shut them down in the successor, too.
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
    """Returns duplicates of this process's named Unix sockets that do not listen. The caller closes them."""
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
    """Returns the modification time in seconds since 1970, or the current time if the file does not exist."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return time.time()


def remove_dead(paths: Iterable[Path]) -> None:
    """Removes the sockets of killed processes. Keeps a socket younger than 10 s, whose process may not listen yet."""
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
