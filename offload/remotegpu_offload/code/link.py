"""The connection to the client for every process of the session.

Only the session's own process has the connection. A forked child must not use it, and a new program that the session
starts does not inherit it. Both reach the client through a relay: the session's process listens on a socket in the
session's folder.
"""

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from remotegpu_offload.wire.frames import Buffer, Message, Service
from remotegpu_offload.wire.peer import Peer
from remotegpu_offload.wire.request import Request

SOCKET_NAME: Final = "relay"
# The environment variable that gives a new program the path of the socket.
RELAY_ENV: Final = "REMOTEGPU_OFFLOAD_RELAY"
_PASSED_ON: Final = (Service.CODE, Service.FILES, Service.STDIO)


class Link:
    """Offers `request` and `notify` of a Peer in every process and thread of the session."""

    def __init__(self, peer: Peer | None, relay: str) -> None:
        self.relay = relay
        self._peer = peer
        self._pid = 0 if peer is None else os.getpid()
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._forked)

    def request(self, service: Service, header: dict[str, Any], buffers: Sequence[Buffer] = ()) -> Message:
        return self.peer.request(service, header, buffers)

    def notify(self, service: Service, header: dict[str, Any], buffers: Sequence[Buffer] = ()) -> None:
        self.peer.notify(service, header, buffers)

    @property
    def peer(self) -> Peer:
        found = self._peer
        if found is not None and self._pid == os.getpid():
            return found
        with self._lock:
            if self._peer is None or self._pid != os.getpid():
                self._peer = connect(self.relay)
                self._pid = os.getpid()
            return self._peer

    def _forked(self) -> None:
        self._lock = threading.Lock()
        peer, self._peer = self._peer, None
        if peer is not None:
            peer.abandon("the connection is that of the parent process")


def connect(relay: str) -> Peer:
    """Connects through the session's process. Raises OSError if that process has ended."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(relay)
    except OSError:
        sock.close()
        raise
    peer = Peer(sock, name="the session's process")
    peer.start()
    return peer


class Relay:
    """Forwards requests of the session's other processes to the client.

    `local` can answer a request first; it returns None to forward the request.
    """

    def __init__(self, peer: Peer, path: str, local: Callable[[Request], Message | None]) -> None:
        self.path = path
        self._peer = peer
        self._local = local
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        self._listener.bind(path)
        os.chmod(path, 0o600)
        self._listener.listen(64)
        peer.on_lost.append(lambda _reason: self._listener.close())
        threading.Thread(target=self._accept, name="remotegpu relay", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            child = Peer(sock, name="a process of the program", accepting=True)
            for service in _PASSED_ON:
                child.serve(service, self._pass_on)
            child.start()

    def _pass_on(self, request: Request) -> Message | None:
        answer = self._local(request)
        if answer is not None:
            return answer
        if request.id == 0:
            self._peer.notify(request.service, request.header, request.buffers)
            return None
        return self._peer.request(request.service, request.header, request.buffers)
