"""Lets a CUDA session ask the gateway for connections, because the sandbox forbids the session to connect.

The client's library in this process asks through an inherited socket. Programs that the session starts ask through a
socket path. The gateway answers each request packet with one connection; the connections are interchangeable.
"""

import contextlib
import fcntl
import os
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from remotegpu.api.names import SHARES_ENV
from remotegpu.api.objects import Asking, Share, shares_to_env
from remotegpu_offload.acceptor import packets

# The socket gets a descriptor number of at least this: programs that the session starts do not use such high numbers.
_LEAST: Final = 512
_NAME: Final = ".remotegpu-share"
_MOST_CHILDREN: Final = 128


def use(share: Mapping[str, str], socket_given: socket.socket, folder: Path, *, children: bool) -> None:
    """Sets the environment variable by which the client's library finds the share.

    With `children`, programs that the session starts can use the share too.
    """
    asking = socket.socket(fileno=fcntl.fcntl(socket_given.fileno(), fcntl.F_DUPFD_CLOEXEC, _LEAST))
    socket_given.close()
    path = folder / _NAME if children else None
    if path is not None:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listening.bind(str(path))
        listening.listen(_MOST_CHILDREN)
        threading.Thread(target=_serve, args=(listening, asking), name="remotegpu-share", daemon=True).start()
    where = Asking(asking.detach() if path is None else asking.fileno(), None if path is None else str(path))
    os.environ[SHARES_ENV] = shares_to_env([Share(share["endpoint"], share["lease_id"], "", asking=where)])


def _serve(listening: socket.socket, asking: socket.socket) -> None:
    while True:
        with contextlib.suppress(OSError):
            child, _ = listening.accept()
            threading.Thread(target=_pass_on, args=(child, asking), name="remotegpu-share", daemon=True).start()


def _pass_on(child: socket.socket, asking: socket.socket) -> None:
    """Forwards the child's requests to the gateway, and the gateway's answers to the child."""
    with child, contextlib.suppress(OSError):
        while (question := packets.receive(child)) is not None:
            for descriptor in question[1]:
                os.close(descriptor)
            packets.send(asking, {})
            answer = packets.receive(asking)
            if answer is None:
                return
            try:
                packets.send(child, {}, answer[1])
            finally:
                for descriptor in answer[1]:
                    os.close(descriptor)
