"""The gateway: the program that passes data connections to workers. Started, watched and restarted here."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from pathlib import Path

from remotegpu.appliance.packets import Packet, PacketChannel, packet_pair
from remotegpu.appliance.workers import exit_text

_log = logging.getLogger(__name__)

_LISTEN_SECONDS = 5.0
# A gateway that dies this often within a minute would die again.
_MAX_RESTARTS = 5
_RETRY_SECONDS = 0.5


class GatewayError(Exception):
    """The gateway does not stay up; the message says why."""


class Gateway:
    """`on_event` gets the gateway's packets; `on_restart` is called when a new gateway has lost the old one's state."""

    def __init__(
        self,
        *,
        program: Path,
        host: str,
        port: int,
        certificate: tuple[Path, Path] | None,
        on_event: Callable[[Packet], None],
        on_restart: Callable[[], None],
    ) -> None:
        self._program = program
        self._host = host
        self.port = port
        self._certificate = certificate
        self._on_event = on_event
        self._on_restart = on_restart
        self._channel: PacketChannel | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._listening: asyncio.Future[int] | None = None
        self._watch: asyncio.Task[None] | None = None
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        await self._start()
        self._watch = asyncio.create_task(self._restart_when_it_dies())

    async def stop(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch
        if self._channel is not None:
            self._channel.close()
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    def admit_session(self, session_id: str, ticket: str, data: socket.socket) -> None:
        """Let one data connection with this ticket through to a worker; `data` is the gateway's from here on."""
        with data:
            self._send({"op": "session", "id": session_id, "ticket": ticket}, (data.fileno(),))

    def admit_lease(self, lease_id: str, ticket: str) -> None:
        self._send({"op": "lease", "id": lease_id, "ticket": ticket})

    def forget(self, any_id: str) -> None:
        self._send({"op": "forget", "id": any_id})

    def _send(self, packet: Packet, fds: tuple[int, ...] = ()) -> None:
        if self._channel is not None:
            self._channel.send(packet, fds)

    async def _start(self) -> None:
        ours, theirs = packet_pair()
        arguments = ["--listen", f"{self._host}:{self.port}", "--control-fd", str(theirs.fileno())]
        if self._certificate is not None:
            arguments += ["--cert", str(self._certificate[0]), "--key", str(self._certificate[1])]
        with theirs:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    self._program,
                    *arguments,
                    pass_fds=(theirs.fileno(),),
                    stdin=asyncio.subprocess.DEVNULL,
                    start_new_session=True,
                )
            except OSError as error:
                ours.close()
                raise GatewayError(f"the gateway {self._program} did not start: {error.strerror or error}") from None
        self._listening = asyncio.get_running_loop().create_future()
        self._channel = PacketChannel(ours, self._receive, self._closed)
        try:
            self.port = await asyncio.wait_for(self._listening, _LISTEN_SECONDS)
        except (TimeoutError, ConnectionError):
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            code = await self._process.wait()
            raise GatewayError(
                f"the gateway cannot listen on {self._host}:{self.port} ({exit_text(code)}): "
                "is the port in use, or the certificate unreadable? Its own message stands above"
            ) from None

    def _receive(self, packet: Packet) -> None:
        if packet.get("op") == "listening" and self._listening is not None and not self._listening.done():
            self._listening.set_result(int(packet["port"]))
        else:
            self._on_event(packet)

    def _closed(self) -> None:
        if self._listening is not None and not self._listening.done():
            self._listening.set_exception(ConnectionError())

    async def _restart_when_it_dies(self) -> None:
        deaths: list[float] = []
        while True:
            assert self._process is not None
            code = await self._process.wait()
            _log.error(
                "the gateway ended (%s); sessions continue, new connections wait", exit_text(code)
            )
            if self._channel is not None:
                self._channel.close()
            now = asyncio.get_running_loop().time()
            deaths = [when for when in deaths if when > now - 60] + [now]
            if len(deaths) > _MAX_RESTARTS:
                last = f"the gateway ended {len(deaths)} times within a minute, last with {exit_text(code)}"
                self.failed.set_result(last)
                return
            try:
                await self._start()
            except GatewayError as error:
                _log.error("%s", error)
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                self._on_restart()
