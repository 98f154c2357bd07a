"""What runs for one session, whatever it is: a worker for CUDA calls, or an acceptor for Python (offload)."""

import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

from remotegpu.appliance.packets import Packet

if TYPE_CHECKING:
    from remotegpu.appliance.sessions import Session


class ProcessError(Exception):
    """A session's process did not start; the message says why."""


class SessionProcess(Protocol):
    """Our side of the process."""

    kind: str  # for people
    pid: int

    def send(self, packet: Packet) -> None: ...

    async def wait_until_ready(self) -> None:
        """Raises ProcessError if that does not come to pass."""

    async def wait(self) -> int:
        """Its exit code, negative for a signal, once it has ended."""

    async def end(self, code: int, reason: str) -> None:
        """Ask it to tell its client why and to exit; kill it if it does not. Returns when it is gone."""

    async def kill(self) -> None: ...

    def close(self) -> None:
        """It is gone: let go of what is held for it."""


# Starts one, which tells the function what it wants; also returned: the gateway's end of its data socket.
Launch = Callable[["Session", Callable[[Packet], None]], Awaitable[tuple[SessionProcess, socket.socket]]]
