"""The protocol between a program and its acceptor: frames, and the two peers that exchange them.

`frames` is the format (pure), `stream` sends and receives whole frames, `peer` uses them for requests, and `threads`
decides which thread executes a request. Both ends use this package. It does not know the meaning of requests, and
imports no other part of offload.
"""

from remotegpu_offload.wire.errors import FrameError, LostError, OffloadError, RemoteFailure
from remotegpu_offload.wire.frames import Buffer, Kind, Message, Service
from remotegpu_offload.wire.peer import Peer
from remotegpu_offload.wire.request import DEFERRED, Counters, Deferred, Handler, Request

__all__ = [
    "DEFERRED",
    "Buffer",
    "Counters",
    "Deferred",
    "FrameError",
    "Handler",
    "Kind",
    "LostError",
    "Message",
    "OffloadError",
    "Peer",
    "RemoteFailure",
    "Request",
    "Service",
]
