"""The zygote of one environment: starts the process, asks it to fork, and receives pidfds of the forked processes."""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from remotegpu.appliance.machine.exits import exit_text
from remotegpu.appliance.packets import packet_pair
from remotegpu.appliance.sessions.processes import ProcessError
from remotegpu_offload.acceptor import packets

_log = logging.getLogger(__name__)

# Importing torch takes seconds while its files are not cached, and a minute on a slow disk.
_READY_SECONDS: Final = 180.0
_FORK_SECONDS: Final = 30.0


class Forked:
    """A child process of the zygote. Its pidfd ends it: a reused process id could name another process."""

    def __init__(self, pid: int, descriptor: int, code: "asyncio.Future[int | None]") -> None:
        self.pid = pid
        self.descriptor = descriptor
        self.code = code


@dataclass(slots=True)
class _Asked:
    forked: "asyncio.Future[Forked]"
    code: "asyncio.Future[int | None]"


class Zygote:
    """The handle of a zygote. `start` and `fork` raise ProcessError. After the process has ended, create a new
    handle."""

    def __init__(self, python: Path, folder: Path, variables: Mapping[str, str]) -> None:
        self._python = python
        self._folder = folder
        self._variables = variables
        self._process: asyncio.subprocess.Process | None = None
        self._control: socket.socket | None = None
        self._ready: asyncio.Future[str] | None = None
        self._asked: dict[str, _Asked] = {}

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    async def start(self) -> None:
        """Starts the interpreter; returns when its frameworks are imported. Raises ProcessError."""
        loop = asyncio.get_running_loop()
        ours, theirs = packet_pair()
        ours.setblocking(False)
        self._control, self._ready = ours, loop.create_future()
        # With -P and -s the interpreter's path has neither the current folder nor root's own packages.
        command = [str(self._python), "-P", "-s", "-m", "remotegpu_offload.acceptor.zygote"]
        paths = (str(self._folder), self._variables.get("PYTHONPATH"))
        with theirs:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *command,
                    *("--control-fd", str(theirs.fileno())),
                    env={**self._variables, "PYTHONPATH": ":".join(filter(None, paths))},
                    cwd="/",
                    pass_fds=(theirs.fileno(),),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                    umask=0o077,
                    start_new_session=True,
                )
            except OSError as error:
                self._closed()
                raise ProcessError(f"{self._python} did not start: {error.strerror or error}") from None
        loop.add_reader(ours, self._readable)
        try:
            async with asyncio.timeout(_READY_SECONDS):
                reason = await self._ready
        except TimeoutError:
            await self.stop()
            raise ProcessError(f"{self._python} had not imported its frameworks after {_READY_SECONDS:.0f} s") from None
        except ConnectionError:
            code = await self._process.wait()
            raise ProcessError(
                f"{self._python} ended at its start ({exit_text(code)}): is it Python 3.11 or later, on Linux? Its own "
                "message is in the appliance's log"
            ) from None
        if reason:
            await self.stop()
            raise ProcessError(reason)

    async def fork(self, packet: Mapping[str, Any], sockets: Sequence[socket.socket]) -> Forked:
        """Forks a process for a new session and gives it the sockets. Raises ProcessError.

        `packet`: the arguments of `forked.become_session`.
        """
        loop = asyncio.get_running_loop()
        if self._control is None:
            raise ProcessError("its interpreter has just ended and is being started again; try once more")
        asked = _Asked(loop.create_future(), loop.create_future())
        self._asked[packet["id"]] = asked
        try:
            packets.send(self._control, {"op": "fork", **packet}, [one.fileno() for one in sockets])
            async with asyncio.timeout(_FORK_SECONDS):
                return await asyncio.shield(asked.forked)
        except (OSError, TimeoutError) as error:
            # No task will await the future any more.
            asked.forked.add_done_callback(_discard)
            raise ProcessError(f"the interpreter does not fork a session ({error or 'no answer'})") from None
        except asyncio.CancelledError:
            asked.forked.add_done_callback(_discard)
            raise

    async def ended(self) -> str:
        """Waits until the zygote has ended. Returns how it ended."""
        assert self._process is not None
        code = await self._process.wait()
        self._closed()
        return exit_text(code)

    async def stop(self) -> None:
        self._closed()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    def _readable(self) -> None:
        assert self._control is not None
        assert self._ready is not None
        received = packets.receive(self._control)
        if received is None:
            self._closed()
            return
        packet, descriptors = received
        asked = self._asked.get(str(packet.get("id")))
        match packet.get("op"):
            case "ready" if not self._ready.done():
                self._ready.set_result("")
            case "broken" if not self._ready.done():
                self._ready.set_result(str(packet.get("reason")))
            case "forked" if asked and descriptors and not asked.forked.done():
                asked.forked.set_result(Forked(int(packet["pid"]), descriptors.pop(), asked.code))
            case "failed" if asked and not asked.forked.done():
                asked.forked.set_exception(ProcessError(str(packet.get("reason"))))
                del self._asked[packet["id"]]
            case "exited" if asked:
                del self._asked[packet["id"]]
                if not asked.forked.done():
                    asked.forked.set_exception(ProcessError("it ended at its start"))
                if not asked.code.done():
                    asked.code.set_result(int(packet["code"]))
        for descriptor in descriptors:
            os.close(descriptor)

    def _closed(self) -> None:
        if self._control is None:
            return
        asyncio.get_running_loop().remove_reader(self._control)
        self._control.close()
        self._control = None
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(ConnectionError())
        for asked in self._asked.values():
            if not asked.forked.done():
                asked.forked.set_exception(ProcessError("its interpreter has just ended; try once more"))
            if not asked.code.done():
                asked.code.set_result(None)  # no process is left that could report the code
        self._asked.clear()


def _discard(done: "asyncio.Future[Forked]") -> None:
    """Closes the pidfd of a process that no task awaits. The process ends because its control socket is closed."""
    if not done.cancelled() and done.exception() is None:
        os.close(done.result().descriptor)
