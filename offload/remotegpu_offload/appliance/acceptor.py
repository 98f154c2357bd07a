"""The handle by which the appliance controls one acceptor process."""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
from collections.abc import Sequence
from io import FileIO
from pathlib import Path
from typing import Any, Final

from remotegpu.appliance.machine.cgroups import Group
from remotegpu.appliance.machine.exits import exit_text
from remotegpu.appliance.packets import OnPacket, Packet, PacketChannel
from remotegpu.appliance.sessions.processes import ProcessError
from remotegpu_offload.appliance.zygote import Forked

# The expected first packet, and the timeout for it in seconds.
_SESSION: Final = ("ready", 30.0)
_SELF_TEST: Final = ("described", 120.0)
_END_SECONDS: Final = 3.0
# How long the zygote may take to report the exit code after the process has ended.
_CODE_SECONDS: Final = 1.0
# The packets that an acceptor may send besides its first. Workers have more, for memory and GPU faults.
_PACKETS: Final = ("log", "stats")


class Acceptor:
    """A `processes.SessionProcess`.

    `first` resolves with the first packet that is not one of `_PACKETS`, such as the result of a self-test.
    """

    kind = "acceptor"

    def __init__(
        self,
        forked: Forked,
        control: socket.socket,
        folder: Path,
        group: Group,
        on_packet: OnPacket,
        *,
        self_test: bool = False,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.pid = forked.pid
        self._forked = forked
        self._folder = folder
        self._group = group
        self._on_packet = on_packet
        self._begins, self._seconds = _SELF_TEST if self_test else _SESSION
        self.first: asyncio.Future[Packet] = loop.create_future()
        self._gone: asyncio.Future[None] = loop.create_future()
        # Readable once the process has ended.
        loop.add_reader(forked.descriptor, self._ended)
        self._channel = PacketChannel(control, self._receive)

    def send(self, packet: Packet, fds: Sequence[int] = ()) -> None:
        self._channel.send(packet, fds)

    async def wait_until_ready(self) -> None:
        either: list[asyncio.Future[Any]] = [self.first, self._gone]
        await asyncio.wait(either, timeout=self._seconds, return_when=asyncio.FIRST_COMPLETED)
        if self.first.done():
            packet = self.first.result()
            if packet.get("op") == self._begins:
                return
            raise ProcessError(f"the acceptor did not start: {packet.get('reason')}")
        if not self._gone.done():
            raise ProcessError(f"the acceptor was not ready after {self._seconds:.0f} s")
        code = await self.wait()
        raise ProcessError(f"the acceptor ended at its start ({exit_text(code)}); its messages are in the log")

    async def wait(self) -> int:
        await asyncio.shield(self._gone)
        try:
            async with asyncio.timeout(_CODE_SECONDS):
                code = await asyncio.shield(self._forked.code)
        except TimeoutError:
            code = None
        if code is None:
            # Without its zygote the exit code is unknown; a clean end must not be assumed.
            return -signal.SIGKILL
        # A keeper reports in this way that a signal ended its child.
        return 128 - code if 128 < code < 128 + signal.NSIG else code

    async def end(self, code: int, reason: str) -> None:
        del code  # a code of CUDA, without meaning here
        self._channel.send({"op": "end", "reason": reason})
        try:
            async with asyncio.timeout(_END_SECONDS):
                await asyncio.shield(self._gone)
        except TimeoutError:
            await self.kill()

    async def kill(self) -> None:
        if not self._gone.done():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._forked.descriptor, signal.SIGKILL)
        await asyncio.shield(self._gone)

    def close(self) -> None:
        self._channel.close()
        if self._forked.descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self._forked.descriptor)
            os.close(self._forked.descriptor)
            self._forked.descriptor = -1
        self._group.remove()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _ended(self) -> None:
        asyncio.get_running_loop().remove_reader(self._forked.descriptor)
        if not self._gone.done():
            self._gone.set_result(None)

    def _receive(self, packet: Packet, file: FileIO | None) -> None:
        """Handles a packet. A tenant may control the sending process, so the packet is untrusted."""
        if packet.get("op") in _PACKETS:
            self._on_packet(packet, file)
        elif not self.first.done():
            self.first.set_result(packet)
