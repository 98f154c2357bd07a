"""A gateway with a thousand leases, 500 sessions and 4,000 moved leases, which a test or a measurement kills."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

from support.system import DIST

from remotegpu.appliance._generated.gateway_orders import LeasePart
from remotegpu.appliance.gateway import Event, Gateway, Restarted

LEASES, SESSIONS, MOVED = 1000, 500, 4000
TICKET = "ab" * 32


class CrowdedGateway:
    """Its sessions have sockets in place of workers, by their ids."""

    def __init__(self, folder: Path) -> None:
        self.gateway = Gateway(DIST / "bin" / "remotegpu-gateway", None, folder / "service")
        self.events: list[Event] = []
        self.workers: dict[str, socket.socket] = {}
        self._restarted = asyncio.Event()

    async def start(self) -> None:
        await self.gateway.start("127.0.0.1", 0, 0, self._listen)
        to = '{"endpoint": "' + "h" * 200 + ':7070", "data_port": 7071, "server_name": null}'
        for number in range(MOVED):
            self.gateway.moved(f"{number:032x}", TICKET, to)
        for number in range(5000, 5000 + SESSIONS):
            self.admit(f"{number:032x}")
        self.gateway.set_parts("cd" * 16, [LeasePart(gpu=0, weight=250, limit=500)])
        await self.gateway.synced()

    def admit(self, session_id: str) -> None:
        """Opens a session that outlives its connection."""
        self.workers[session_id], theirs = socket.socketpair()
        self.gateway.admit_session(session_id, TICKET, theirs, resumes=True)

    async def kill(self) -> None:
        """Returns when a new gateway is being told what the old one knew."""
        assert self.gateway.pid is not None
        self._restarted.clear()
        os.kill(self.gateway.pid, signal.SIGKILL)
        await self._restarted.wait()

    async def connect(self, session_id: str) -> None:
        """Returns when the connection of a client is at the session's worker."""
        worker, loop = self.workers[session_id], asyncio.get_running_loop()
        with socket.create_connection(("127.0.0.1", self.gateway.port)) as connection:
            connection.sendall(b"RGP1" + bytes.fromhex(session_id) + bytes.fromhex(TICKET))
            worker.setblocking(False)
            arrived = asyncio.Event()
            loop.add_reader(worker, arrived.set)
            try:
                await arrived.wait()
            finally:
                loop.remove_reader(worker)
            _, descriptors, _, _ = socket.recv_fds(worker, 4096, 1)
        assert len(descriptors) == 1
        os.close(descriptors[0])

    def _listen(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, Restarted):
            self.gateway.readmit_sessions()
            for number in range(LEASES):
                self.gateway.admit_lease(f"{number:032x}", TICKET)
            self._restarted.set()


@contextlib.asynccontextmanager
async def crowded_gateway(folder: Path) -> AsyncIterator[CrowdedGateway]:
    crowded = CrowdedGateway(folder)
    try:
        await crowded.start()
        yield crowded
    finally:
        await crowded.gateway.stop()
        for worker in crowded.workers.values():
            worker.close()
