"""A CUDA session asks the gateway for connections, which it may not make itself. It asks through a socket that the
client's library in this process uses, and through a path for programs that the session starts.

The gateway answers each packet on such a socket with a connection; all answers are alike.
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

# Above the descriptors that a program opens: in a program that the session starts, the number is unused.
_LEAST: Final = 512
_NAME: Final = ".remotegpu-share"
_MOST_CHILDREN: Final = 128


def use(share: Mapping[str, str], socket_given: socket.socket, folder: Path, *, children: bool) -> None:
    """Lets the client's library find the share; with `children`, in programs that the session starts as well."""
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
    """Passes the child's questions to the gateway, and the answers to the child."""
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
