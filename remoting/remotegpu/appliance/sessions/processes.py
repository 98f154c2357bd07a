"""The interface that starts a session's process."""

import socket
from collections.abc import Awaitable, Callable

from remotegpu.appliance.packets import OnPacket
from remotegpu.appliance.sessions.state import Session, SessionProcess


class ProcessError(Exception):
    """A session's process did not start; the message says why."""


# Starts a process whose packets go to the function; also returns the gateway's end of its data socket.
Launch = Callable[[Session, OnPacket], Awaitable[tuple[SessionProcess, socket.socket]]]
