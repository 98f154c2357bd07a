"""The interface that starts a session's process."""

import socket
from collections.abc import Awaitable, Callable

from remotegpu.appliance.packets import OnPacket
from remotegpu.appliance.sessions.state import Session, SessionProcess


class ProcessError(Exception):
    """Raised if a session's process does not start. The message has the cause."""


# Starts a process and passes its packets to the callback. Returns the process and the gateway's end of its data socket.
Launch = Callable[[Session, OnPacket], Awaitable[tuple[SessionProcess, socket.socket]]]
