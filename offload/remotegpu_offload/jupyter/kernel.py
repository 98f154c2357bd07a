"""A notebook's kernel inside an acceptor: ipykernel as it is, but for sockets that never leave the process."""

import atexit
import os
import signal
import sys
from pathlib import Path
from typing import Any, Final

import zmq
from ipykernel.iostream import IOPubThread
from ipykernel.kernelapp import IPKernelApp

from remotegpu_offload.jupyter.channels import BOTH_WAYS, IOPUB, Relay
from remotegpu_offload.wire import Peer

# ipykernel binds them in this order.
_ORDER: Final = ("shell", "stdin", "control", IOPUB)
# The kernel answers to, and asks for input from, the one whom this names.
_OTHER_END: Final = b"remotegpu"


class Kernel(IPKernelApp):  # type: ignore[misc]
    """Without a connection file, ports, a heartbeat and a parent process."""

    name = "remotegpu-kernel"

    def _bind_socket(self, s: Any, port: int) -> int:  # noqa: ARG002 (the original's)
        self._bound = getattr(self, "_bound", 0) + 1
        s.bind(_address(_ORDER[self._bound - 1]))
        return self._bound

    def init_iopub(self, context: Any) -> None:
        """As the original, without the port that reports child processes."""
        self.iopub_socket = context.socket(zmq.XPUB)
        self.iopub_socket.linger = 1000
        self.iopub_port = self._bind_socket(self.iopub_socket, 0)
        self.configure_tornado_logger()
        self.iopub_thread = IOPubThread(self.iopub_socket, pipe=False, session=self.session)
        self.iopub_thread.start()
        self.iopub_socket = self.iopub_thread.background_socket

    def init_connection_file(self) -> None:
        """There is none."""

    def write_connection_file(self, **kwargs: Any) -> None:
        """There is none."""

    def init_poller(self) -> None:
        """The session ends with its connection."""

    def init_heartbeat(self) -> None:
        """At the other end, which knows whether the connection lives."""

    def log_connection_info(self) -> None:
        """Nobody can connect."""


def run(peer: Peer, folder: Path, key: str, scheme: str, attach: Any) -> None:
    """Run a kernel in this thread, the main thread, until it is shut down.

    Args:
        folder: for its files.
        key, scheme: what messages are signed with.
        attach: called with the relay, by which messages from the other end come in.
    """
    interrupted = signal.getsignal(signal.SIGINT)
    os.environ["IPYTHONDIR"] = str(folder / "ipython")
    app = Kernel.instance(parent_handle=0, capture_fd_output=False)
    app.session.key = key.encode()
    app.session.signature_scheme = scheme
    app.config.HistoryManager.enabled = False
    streams = sys.stdin, sys.stdout, sys.stderr, sys.displayhook
    relay = None
    try:
        app.initialize([])
        relay = Relay(app.context, lambda: peer, lambda: _sockets(app.context))
        relay.start()
        attach(relay)
        app.start()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        if relay is not None:
            relay.close()
        atexit.unregister(app.close)
        app.close()
        sys.stdin, sys.stdout, sys.stderr, sys.displayhook = streams
        signal.signal(signal.SIGINT, interrupted)


def _sockets(context: "zmq.Context[Any]") -> dict[str, "zmq.Socket[Any]"]:
    found = {}
    for name in BOTH_WAYS:
        socket = context.socket(zmq.DEALER)
        socket.identity = _OTHER_END
        socket.connect(_address(name))
        found[name] = socket
    subscriber = context.socket(zmq.SUB)
    subscriber.subscribe(b"")
    subscriber.connect(_address(IOPUB))
    return {**found, IOPUB: subscriber}


def _address(channel: str) -> str:
    return f"inproc://remotegpu-{channel}"
