"""What tests of offload share."""

import contextlib
import socket
import threading
from collections.abc import Iterator

from remotegpu.offload.wire import Peer


@contextlib.contextmanager
def peer_pair(*, start: bool = True) -> Iterator[tuple[Peer, Peer]]:
    """The program's and the acceptor's end of one connection, both in this process.

    With `start=False` the test serves first and then calls `start` of both.
    """
    ours, theirs = socket.socketpair()
    client = Peer(ours, name="the acceptor of this test")
    acceptor = Peer(theirs, name="the program of this test", accepting=True)
    try:
        if start:
            client.start()
            acceptor.start()
        yield client, acceptor
    finally:
        client.close()
        acceptor.close()
        assert not [t.name for t in threading.enumerate() if t in (client._reader, acceptor._reader)]
