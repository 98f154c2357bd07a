"""Starts, watches and restarts the gateway.

The gateway is the program that accepts all connections. It passes data to workers and calls to the control service.
"""

import asyncio
import contextlib
import errno
import logging
import os
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from remotegpu.appliance._generated import gateway_orders as orders
from remotegpu.appliance._generated.gateway_events import GatewayEvent, Listening, Synced, read
from remotegpu.appliance._generated.gateway_orders import LeasePart
from remotegpu.appliance.handover import Adopted, NoHandoverError, Process, State, kept, taken
from remotegpu.appliance.machine.exits import exit_text
from remotegpu.appliance.packets import Packet, PacketChannel, packet_pair

_log = logging.getLogger(__name__)

_LISTEN_SECONDS = 5.0
# A gateway that ends more often within a minute is not started again.
_MAX_RESTARTS = 5
_RETRY_SECONDS = 0.5
# The gateway remembers the same number.
_MOST_MOVED = 4096
# Several times the number of orders that a new gateway gets at its start.
_MOST_ORDERS = 64 << 10


class GatewayError(Exception):
    """Raised if the gateway does not start. The message has the cause."""


@dataclass(frozen=True, slots=True)
class Restarted:
    """A new gateway was started. It knows neither leases nor sessions yet."""


Event = GatewayEvent | Restarted
Listener = Callable[[Event], None]


def _local_socket(folder: Path | None, kept: Path) -> Path | None:
    """Returns the path of a socket with an unguessable name in the folder. The file `kept` stores the name.

    The gateway listens there as soon as the folder is writable. On a node of a cluster the device plugin creates the
    folder.
    """
    if folder is None:
        return None
    if not kept.exists():
        _remove_dead(folder)
        kept.write_text(secrets.token_hex(16))
    return folder / kept.read_text()


def _remove_dead(folder: Path) -> None:
    """Removes sockets that killed appliances of this user left in the folder."""
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as asked:
                if path.lstat().st_uid == os.geteuid() and asked.connect_ex(str(path)) == errno.ECONNREFUSED:
                    path.unlink()


class Gateway:
    """The gateway process. It listens for data on `port` and for calls on `control_port`.

    The gateway passes calls to the control service on the Unix socket `service`. `data_socket` is a Unix socket for
    data of clients on this machine; None if there is none. With a certificate this socket lies in the folder `local`,
    and only clients with shared memory can use it.
    """

    def __init__(
        self, program: Path, certificate: tuple[Path, Path] | None, service: Path, local: Path | None = None
    ) -> None:
        self._program = program
        self._certificate = certificate
        self._service = service
        self.data_socket = (
            service.with_name("data") if certificate is None else _local_socket(local, service.with_name("local"))
        )
        self.port = 0
        self.control_port = 0
        self._channel: PacketChannel | None = None
        self._process: Process | None = None
        self._listening: asyncio.Future[tuple[int, int]] | None = None
        self._watch: asyncio.Task[None] | None = None
        # The gateway's end of each resumable session, with the ticket. A restarted gateway gets them again.
        self._sessions: dict[str, tuple[str, socket.socket]] = {}
        # Callers that wait until the gateway has carried out all orders, by number.
        self._syncs = 0
        self._synced: dict[int, asyncio.Future[None]] = {}
        # Tickets and new places of sessions and leases that have moved away.
        self._moved: dict[str, tuple[str, str]] = {}
        # The gateway's end for each acceptor that requests connections. A restarted gateway gets them again.
        self._acceptors: dict[str, socket.socket] = {}
        # Leases whose time is divided, and their workers, for the next gateway.
        self._parts: dict[str, list[LeasePart]] = {}
        self._turns: dict[str, tuple[str, socket.socket]] = {}
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @property
    def pid(self) -> int | None:
        """The gateway's process id; None while none runs."""
        return self._process.pid if self._process is not None else None

    async def start(self, host: str, port: int, control_port: int, listener: Listener) -> None:
        """Starts the gateway, which listens on the ports (0: any free port). `listener` gets the events from then on.

        Raises GatewayError.
        """
        self.port, self.control_port = port, control_port
        process = await self._start(host, listener)
        self._watch = asyncio.create_task(self._restart_when_it_dies(host, listener, process))

    def handed(self) -> State:
        """Returns the state for `adopt`, without acceptors. Raises NoHandoverError while the gateway starts."""
        if self._channel is None or self._channel.closed or self._channel.waits or self._process is None:
            raise NoHandoverError("the gateway is being started: try again")
        sessions = [(name, ticket, kept(data.fileno())) for name, (ticket, data) in self._sessions.items()]
        ports = {"port": self.port, "control_port": self.control_port}
        found = {"pid": self._process.pid, "control": kept(self._channel.fileno()), "moved": self._moved}
        turns = [(name, lease_id, kept(turns.fileno())) for name, (lease_id, turns) in self._turns.items()]
        parts = {
            name: [(part["gpu"], part["weight"], part["limit"]) for part in parts]
            for name, parts in self._parts.items()
        }
        return {**ports, **found, "sessions": sessions, "turns": turns, "parts": parts}

    def adopt(self, state: State, host: str, listener: Listener) -> None:
        """Takes over the running gateway that the state of `handed` describes."""
        self.port, self.control_port = state["port"], state["control_port"]
        self._moved = {name: (ticket, to) for name, (ticket, to) in state["moved"].items()}
        self._sessions = {name: (ticket, socket.socket(fileno=taken(data))) for name, ticket, data in state["sessions"]}
        # The state of an earlier version has no turns.
        turns = state.get("turns", ())
        self._turns = {name: (lease_id, socket.socket(fileno=taken(turn))) for name, lease_id, turn in turns}
        self._parts = {
            name: [LeasePart(gpu=gpu, weight=weight, limit=limit) for gpu, weight, limit in parts]
            for name, parts in state.get("parts", {}).items()
        }
        process = self._process = Adopted(state["pid"])
        control = socket.socket(fileno=taken(state["control"]))
        self._channel = self._talk(control, listener)
        self._watch = asyncio.create_task(self._restart_when_it_dies(host, listener, process))

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
        ends = (end for _, end in (*self._sessions.values(), *self._turns.values()))
        for end in (*self._acceptors.values(), *ends):
            end.close()
        if self.data_socket is not None:
            with contextlib.suppress(OSError):
                self.data_socket.unlink()

    def admit_session(self, session_id: str, ticket: str, data: socket.socket, *, resumes: bool) -> None:
        """Lets the gateway pass one data connection with this ticket to a worker. The gateway owns `data` from then on.

        If `resumes`, the gateway admits later connections too, if they prove that they belong to this session.
        """
        self._send(orders.session(id=session_id, ticket=ticket, resumes=resumes), (data.fileno(),))
        if resumes:
            self._sessions[session_id] = ticket, data
        else:
            data.close()

    def ticket(self, session_id: str) -> str:
        """Returns the ticket with which the client of a session reconnects; empty if the session is not resumable."""
        return self._sessions[session_id][0] if session_id in self._sessions else ""

    def replace_ticket(self, session_id: str, ticket: str) -> None:
        """Sets the client's ticket of a session that moved here from another appliance. Then the client can connect."""
        _, data = self._sessions[session_id]
        self._sessions[session_id] = ticket, data
        self._send(orders.joined(id=session_id, ticket=ticket), (data.fileno(),))

    def moved(self, any_id: str, ticket: str, to: str) -> None:
        """Lets the gateway redirect clients of a moved session or lease, which show `ticket`, to the appliance `to`."""
        self._moved[any_id] = ticket, to
        if len(self._moved) > _MOST_MOVED:
            del self._moved[next(iter(self._moved))]
        self._send(orders.moved(id=any_id, ticket=ticket, to=to))

    async def synced(self) -> None:
        """Waits until the gateway has carried out all orders so far, but at most five seconds.

        A restarted gateway gets the orders again.
        """
        self._syncs += 1
        done = self._synced[self._syncs] = asyncio.get_running_loop().create_future()
        self._send(orders.sync(number=self._syncs))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LISTEN_SECONDS):
                await done

    def readmit_sessions(self) -> None:
        """Sends all sessions to a new gateway. Their clients then reconnect."""
        for any_id, (ticket, to) in self._moved.items():
            self._send(orders.moved(id=any_id, ticket=ticket, to=to))
        for session_id, (ticket, data) in self._sessions.items():
            self._send(orders.joined(id=session_id, ticket=ticket), (data.fileno(),))
        for lease_id, parts in self._parts.items():
            self.set_parts(lease_id, parts)
        for session_id, (lease_id, turns) in self._turns.items():
            self._send(orders.turns(id=session_id, lease=lease_id), (turns.fileno(),))

    def set_parts(self, lease_id: str, parts: list[LeasePart]) -> None:
        """Sets a lease's parts of its GPUs' time."""
        self._parts[lease_id] = parts
        self._send(orders.share(lease=lease_id, places=parts))

    def admit_turns(self, session_id: str, lease_id: str, turns: socket.socket) -> None:
        """Lets the gateway give turns to a session's worker over `turns`. The gateway owns the socket from then on."""
        self._turns[session_id] = lease_id, turns
        self._send(orders.turns(id=session_id, lease=lease_id), (turns.fileno(),))

    def admit_lease(self, lease_id: str, ticket: str) -> None:
        self._send(orders.lease(id=lease_id, ticket=ticket))

    def admit_acceptor(self, session_id: str, asking: socket.socket) -> None:
        """Lets an acceptor request connections on the other end of `asking`. The gateway owns `asking` from then on.

        Calls on these connections have the peer name `session:ID`.
        """
        self._acceptors[session_id] = asking
        self._send(orders.acceptor(id=session_id), (asking.fileno(),))

    def known(self, connection: int) -> None:
        """Tells the gateway that a call on this connection of the control port was authenticated."""
        self._send(orders.known(connection=connection))

    def forget(self, any_id: str) -> None:
        if asking := self._acceptors.pop(any_id, None):
            asking.close()
        if session := self._sessions.pop(any_id, None):
            session[1].close()
        if turns := self._turns.pop(any_id, None):
            turns[1].close()
        self._parts.pop(any_id, None)
        self._send(orders.forget(id=any_id))

    def _send(self, packet: Packet, fds: tuple[int, ...] = ()) -> None:
        if self._channel is not None:
            self._channel.send(packet, fds)

    async def _start(self, host: str, listener: Listener) -> asyncio.subprocess.Process:
        ours, theirs = packet_pair()
        arguments = ["--listen", f"{host}:{self.port}", "--control-fd", str(theirs.fileno())]
        arguments += ["--control-listen", f"{host}:{self.control_port}", "--control-socket", str(self._service)]
        if self.data_socket is not None:
            arguments += ["--data-socket", str(self.data_socket)]
        if self._certificate is not None:
            arguments += ["--cert", str(self._certificate[0]), "--key", str(self._certificate[1])]
        with theirs:
            try:
                process = self._process = await asyncio.create_subprocess_exec(
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
        self._channel = self._talk(ours, listener)
        try:
            async with asyncio.timeout(_LISTEN_SECONDS):
                self.port, self.control_port = await self._listening
        except (TimeoutError, ConnectionError):
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            code = await process.wait()
            raise GatewayError(
                f"the gateway cannot listen on {host}:{self.port} and :{self.control_port} ({exit_text(code)}): "
                "is a port in use, or the certificate unreadable? Its own message stands above"
            ) from None
        return process

    def _talk(self, control: socket.socket, listener: Listener) -> PacketChannel:
        def receive(packet: Packet, _: object) -> None:
            self._receive(packet, listener)

        return PacketChannel(control, receive, self._closed, most_waiting=_MOST_ORDERS)

    def _receive(self, packet: Packet, listener: Listener) -> None:
        match event := read(packet):
            case Listening(port, control):
                if self._listening is not None and not self._listening.done():
                    self._listening.set_result((port, control))
            case Synced(number):
                done = self._synced.pop(number, None)
                if done is not None and not done.done():
                    done.set_result(None)
            case _ if event is not None:
                listener(event)

    def _closed(self) -> None:
        if self._listening is not None and not self._listening.done():
            self._listening.set_exception(ConnectionError())

    async def _restart_when_it_dies(self, host: str, listener: Listener, process: Process) -> None:
        deaths: list[float] = []
        while True:
            code = await process.wait()
            _log.error("the gateway ended (%s); sessions continue, new connections wait, calls fail", exit_text(code))
            if self._channel is not None:
                self._channel.close()
            now = asyncio.get_running_loop().time()
            deaths = [when for when in deaths if when > now - 60] + [now]
            if len(deaths) > _MAX_RESTARTS:
                last = f"the gateway ended {len(deaths)} times within a minute, last with {exit_text(code)}"
                self.failed.set_result(last)
                return
            try:
                process = await self._start(host, listener)
            except GatewayError as error:
                _log.error("%s", error)
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                for session_id, asking in self._acceptors.items():
                    self._send(orders.acceptor(id=session_id), (asking.fileno(),))
                listener(Restarted())
