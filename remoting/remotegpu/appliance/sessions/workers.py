"""Starts and ends worker processes, each with its own uid, a clean environment and only its sockets."""

import asyncio
import contextlib
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from remotegpu.api.names import VISIBLE_DEVICES_ENV
from remotegpu.appliance._generated import worker_orders as orders
from remotegpu.appliance._generated import worker_requests as requests
from remotegpu.appliance.handover import Adopted, Process, State, kept, taken
from remotegpu.appliance.machine.exits import exit_text
from remotegpu.appliance.packets import OnPacket, Packet, PacketChannel, packet_pair
from remotegpu.appliance.sessions.processes import ProcessError
from remotegpu.appliance.sessions.state import Session
from remotegpu.appliance.shares.views import PhysicalGpu

_READY_SECONDS = 10.0
# The time for a worker to send its client the error and to overwrite its memory.
_END_SECONDS = 4.0
_MOST_THREADS = 4096
# Sets limits in a shell: Python code between fork and exec is not safe in a process with threads, and root in a
# container may not change the limits of a process of another uid. No core file: it would have a tenant's memory.
_LAUNCH = ("/bin/sh", "-c", 'ulimit -S -c 0; ulimit -n 4096 2>/dev/null; exec "$0" "$@"')


class Worker:
    """One worker process and our end of its control socket."""

    kind = "worker"

    def __init__(
        self, process: Process, control: socket.socket, on_packet: OnPacket, turns: socket.socket | None = None
    ) -> None:
        """Takes over a started worker. `turns` is the gateway's end of the socket for its turns at the GPUs."""
        self.process = process
        self.pid = process.pid
        self.turns = turns
        self._ready = asyncio.get_running_loop().create_future()
        self._on_packet = on_packet
        self._channel = PacketChannel(control, self._receive)

    def serve(self, on_packet: OnPacket) -> None:
        """Passes the worker's packets to `on_packet` from now on."""
        self._on_packet = on_packet

    def send(self, packet: Packet, fds: Sequence[int] = ()) -> None:
        self._channel.send(packet, fds)

    async def wait_until_ready(self) -> None:
        ended = asyncio.ensure_future(self.process.wait())
        try:
            await asyncio.wait({ended, self._ready}, timeout=_READY_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not ended.done():
                ended.cancel()
        if not self._ready.done():
            code = self.process.returncode
            raise ProcessError(
                f"the worker was not ready after {_READY_SECONDS:.0f} s"
                if code is None
                else f"the worker ended at its start ({exit_text(code)}); its messages are in the appliance's log"
            )

    async def wait(self) -> int:
        code = await self.process.wait()
        self._channel.hear_out()
        return code

    async def end(self, code: int, reason: str) -> None:
        self._channel.send(orders.end(code=code, reason=reason))
        try:
            async with asyncio.timeout(_END_SECONDS):
                await self.wait()
        except TimeoutError:
            await self.kill()

    async def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.wait()

    def close(self) -> None:
        self._channel.close()
        if self.turns is not None:
            self.turns.close()

    def handed(self) -> State:
        return {"pid": self.pid, "control": kept(self._channel.fileno())}

    @classmethod
    def adopted(cls, state: State, on_packet: OnPacket) -> "Worker":
        """Takes over a ready worker from a state that `handed` returned."""
        worker = cls(Adopted(state["pid"]), socket.socket(fileno=taken(state["control"])), on_packet)
        worker._ready.set_result(None)
        return worker

    def _receive(self, packet: Packet, file: FileIO | None) -> None:
        if not self._ready.done() and isinstance(requests.read(packet), requests.Ready):
            self._ready.set_result(None)
        else:
            self._on_packet(packet, file)


@dataclass(frozen=True, slots=True)
class Workers:
    """Starts workers with settings that all of them share."""

    program: Path
    arguments: Sequence[str]
    environment: Mapping[str, str]
    gpus: Sequence[PhysicalGpu]
    take_turns: bool = False  # whether workers take turns at the GPUs

    async def start(self, session: Session, on_packet: OnPacket) -> tuple[Worker, socket.socket]:
        """Starts a session's worker. This method is a `processes.Launch`."""
        return await self.start_on(session.lease.placement.gpus, session.uid, on_packet)

    async def start_on(
        self, gpus: Sequence[int], uid: int | None, on_packet: OnPacket, *, warm: bool = False
    ) -> tuple[Worker, socket.socket]:
        """Starts a worker on GPUs. With `warm`, it creates a context on the first GPU. Raises ProcessError."""
        visible = ",".join(self.gpus[gpu].uuid_text for gpu in gpus)
        environment = {**self.environment, VISIBLE_DEVICES_ENV: visible}
        arguments = [*self.arguments, "--warm"] if warm else self.arguments
        return await start_worker(self.program, arguments, environment, uid, on_packet, take_turns=self.take_turns)


async def start_worker(
    program: Path,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    uid: int | None,
    on_packet: OnPacket,
    *,
    take_turns: bool = False,
) -> tuple[Worker, socket.socket]:
    """Starts a worker. Returns it and the gateway's end of its data socket. Raises ProcessError."""
    control, control_theirs = packet_pair()
    gateway_end, data_theirs = packet_pair()
    turns, turns_theirs = packet_pair() if take_turns else (None, None)
    theirs = [each for each in (control_theirs, data_theirs, turns_theirs) if each is not None]
    with contextlib.ExitStack() as stack:
        for each in theirs:
            stack.enter_context(each)
        try:
            process = await asyncio.create_subprocess_exec(
                *_LAUNCH,
                program,
                *arguments,
                # Only with a uid of its own, since the kernel counts threads by uid.
                *(() if uid is None else ("--threads", str(_MOST_THREADS))),
                *("--control-fd", str(control_theirs.fileno()), "--data-fd", str(data_theirs.fileno())),
                *(() if turns_theirs is None else ("--turns-fd", str(turns_theirs.fileno()))),
                env=dict(environment),
                cwd="/",
                pass_fds=[each.fileno() for each in theirs],
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                user=uid,
                group=uid,
                extra_groups=None if uid is None else [],
                umask=0o077,
                start_new_session=True,
            )
        except BaseException as error:
            control.close()
            gateway_end.close()
            if turns is not None:
                turns.close()
            if isinstance(error, OSError):
                raise ProcessError(f"the worker {program} did not start: {error.strerror or error}") from None
            raise
    return Worker(process, control, on_packet, turns), gateway_end
