"""The channels between a notebook's kernel in an acceptor and the ports that Jupyter connects to.

An acceptor has no network, so the kernel binds its ZeroMQ sockets inside its own process (`inproc:`), and the messages,
untouched, are notices of the session: `{"op": "message", "channel": "shell"}` with the frames as buffers. Each end has
one thread that owns its sockets; what the connection brings reaches it through a socket too.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

import zmq

from remotegpu_offload.wire import LostError, Peer, Request, Service

# Those with messages in both directions; and what the kernel only says.
BOTH_WAYS: Final = ("shell", "control", "stdin")
IOPUB: Final = "iopub"
_ARRIVALS: Final = "inproc://remotegpu-arrivals"
# Between two looks at whether it is time to end.
_POLL_MILLISECONDS: Final = 500


class Relay:
    """Passes messages between sockets and the connection until `close`.

    `open_sockets` makes the sockets, by channel, in the thread that owns them, and `echo` is one whose messages go back
    whence they came (Jupyter's heartbeat).
    """

    def __init__(
        self,
        context: zmq.Context[Any],
        peer: Callable[[], Peer],
        open_sockets: Callable[[], Mapping[str, zmq.Socket[Any]]],
        *,
        echo: str = "",
    ) -> None:
        self._context = context
        self._peer = peer
        self._open = open_sockets
        self._echo = echo
        self._closing = threading.Event()
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._lock = threading.Lock()
        # Under the lock, for ZeroMQ's sockets are for one thread at a time.
        self._arrivals: zmq.Socket[Any] | None = None
        self._thread = threading.Thread(target=self._run, name="remotegpu notebook channels", daemon=True)

    def start(self) -> None:
        """Returns when the sockets are open. Raises what opening them raised."""
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """What has been said already still goes out. Afterwards no socket of ours is open."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()
        with self._lock:
            if self._arrivals is not None:
                self._arrivals.close(0)

    def arrived(self, request: Request) -> None:
        """A message from the other end. For the connection's receiving thread: it does not wait."""
        with self._lock:
            if self._closing.is_set():
                return
            if self._arrivals is None:
                self._arrivals = self._context.socket(zmq.PUSH)
                # Nothing is lost, and nobody waits, however much comes at once.
                self._arrivals.set_hwm(0)
                self._arrivals.connect(_ARRIVALS)
            self._arrivals.send_multipart([str(request.header["channel"]).encode(), *request.buffers])

    def _run(self) -> None:
        arrivals = self._context.socket(zmq.PULL)
        arrivals.set_hwm(0)
        try:
            arrivals.bind(_ARRIVALS)
            sockets = dict(self._open())
        except BaseException as error:
            self._failure = error
            arrivals.close(0)
            return
        finally:
            self._ready.set()
        names = {socket: name for name, socket in sockets.items()}
        poller = zmq.Poller()
        for socket in (arrivals, *names):
            poller.register(socket, zmq.POLLIN)
        try:
            while True:
                found = dict(poller.poll(0 if self._closing.is_set() else _POLL_MILLISECONDS))
                if not found and self._closing.is_set():
                    return
                for socket in found:
                    self._pass_on(socket, names.get(socket, ""), sockets)
        except LostError:
            return
        finally:
            for socket in (arrivals, *names):
                socket.close(1000)

    def _pass_on(self, socket: zmq.Socket[Any], name: str, sockets: Mapping[str, zmq.Socket[Any]]) -> None:
        frames = socket.recv_multipart()
        if not name:
            channel = frames[0].decode()
            if channel in sockets and channel != self._echo:
                sockets[channel].send_multipart(frames[1:])
        elif name == self._echo:
            socket.send_multipart(frames)
        else:
            self._peer().notify(Service.APP, {"op": "message", "channel": name}, frames)
