"""Workers that already have a context, for the next session on their GPU: `--warm-contexts`.

A spare worker serves one session, and a new one replaces it. It needs a user id of its own, and the memory of a context
on the GPU. A session on several GPUs gets an ordinary worker.
"""

import asyncio
import logging
import socket
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Final

from remotegpu.appliance.machine.uids import NoUidsError, Uids
from remotegpu.appliance.packets import OnPacket
from remotegpu.appliance.sessions.processes import ProcessError
from remotegpu.appliance.sessions.state import Session
from remotegpu.appliance.sessions.workers import Worker, Workers

_log = logging.getLogger(__name__)

# The delay before a new spare is started: the program that got the last one needs the CPUs for its start.
_REFILL_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class _Spare:
    worker: Worker
    gateway_end: socket.socket
    uid: int | None

    async def end(self) -> None:
        self.gateway_end.close()
        await self.worker.kill()
        self.worker.close()


class Spares:
    """The spare workers, at most one for each GPU."""

    def __init__(self, workers: Workers, uids: Uids, gpus: int) -> None:
        self._workers = workers
        self._uids = uids
        self._gpus = range(gpus)
        self._ready: dict[int, _Spare] = {}
        # GPUs whose spare is being started.
        self._starting: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def fill(self) -> None:
        for gpu in self._gpus:
            self._spawn(self._fill(gpu))

    async def start(self, session: Session, on_packet: OnPacket) -> tuple[Worker, socket.socket]:
        """Returns the spare worker of the session's GPU, or starts a worker. This method is a `processes.Launch`."""
        gpus = session.lease.placement.gpus
        spare = None
        if len(gpus) == 1:
            spare = self._ready.pop(gpus[0], None)
            # Also without a spare: the last one may have ended at its start.
            asyncio.get_running_loop().call_later(_REFILL_SECONDS, lambda: self._spawn(self._fill(gpus[0])))
        if spare is None:
            return await self._workers.start(session, on_packet)
        if spare.worker.process.returncode is not None:
            self._spawn(self._end(spare))
            return await self._workers.start(session, on_packet)
        self._uids.give_back(session.uid)
        session.uid = spare.uid
        spare.worker.serve(on_packet)
        return spare.worker, spare.gateway_end

    async def close(self) -> None:
        """Ends all spare workers, and starts no more."""
        self._closed = True
        while self._tasks:
            await asyncio.gather(*self._tasks)
        for spare in self._ready.values():
            await self._end(spare)
        self._ready.clear()

    async def _fill(self, gpu: int) -> None:
        if self._closed or gpu in self._ready or gpu in self._starting:
            return
        self._starting.add(gpu)
        try:
            await self._start_one(gpu)
        finally:
            self._starting.discard(gpu)

    async def _start_one(self, gpu: int) -> None:
        try:
            uid = self._uids.take()
        except NoUidsError:
            # Sessions use all user ids, so there is none for a spare.
            return
        try:
            worker, gateway_end = await self._workers.start_on([gpu], uid, lambda _packet, _file: None, warm=True)
        except (ProcessError, OSError) as error:
            self._uids.give_back(uid)
            _log.warning("gpu %d has no spare worker: %s", gpu, error)
            return
        spare = _Spare(worker, gateway_end, uid)
        try:
            await worker.wait_until_ready()
        except ProcessError as error:
            await self._end(spare)
            _log.warning("gpu %d has no spare worker: %s", gpu, error)
            return
        self._ready[gpu] = spare

    async def _end(self, spare: _Spare) -> None:
        await spare.end()
        self._uids.give_back(spare.uid)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
