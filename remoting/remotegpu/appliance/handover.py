"""Restarts an appliance's Python while gateway and workers keep running, and passes the state to the new program.

The process executes itself (`execv`), so it keeps its pid, its children and the inheritable descriptors. All other
state is in a memory file without a name, which only this process has open.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from typing import Any, Final, NoReturn, Protocol

# Must be increased when new code cannot use the state of older code, or cannot work with older gateways and workers.
FORMAT: Final = 1

_FORMAT_SECONDS: Final = 20
_ENV: Final = "REMOTEGPU_HANDOVER_FD"
_ASK: Final = "from remotegpu.appliance.handover import FORMAT; print(FORMAT)"

# JSON; descriptors are numbers.
State = dict[str, Any]


class NoHandoverError(Exception):
    """Raised if the appliance cannot restart in place. The message has the cause."""


class Process(Protocol):
    """A child process. It may have been started before a handover."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    async def wait(self) -> int: ...
    def kill(self) -> None: ...


class Adopted:
    """A child that was started before this process executed itself."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = loop.create_future()
        watch = os.pidfd_open(pid)
        loop.add_reader(watch, self._exited, watch)

    def _exited(self, watch: int) -> None:
        asyncio.get_running_loop().remove_reader(watch)
        os.close(watch)
        self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self._ended.set_result(self.returncode)

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    def kill(self) -> None:
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)


def kept(descriptor: int) -> int:
    """Keeps a descriptor open when this process executes itself."""
    os.set_inheritable(descriptor, True)
    return descriptor


def taken(descriptor: int) -> int:
    """Returns a descriptor that `kept` kept open, and makes it close-on-exec again."""
    os.set_inheritable(descriptor, False)
    return descriptor


async def check_new_code() -> None:
    """Raises NoHandoverError if the installed code does not start, or cannot use this appliance's state."""
    asked = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _ASK, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        async with asyncio.timeout(_FORMAT_SECONDS):
            answer, errors = await asked.communicate()
    except TimeoutError:
        asked.kill()
        await asked.wait()
        raise NoHandoverError(f"the installed code did not answer within {_FORMAT_SECONDS} s") from None
    if asked.returncode != 0:
        last = (errors.decode(errors="replace").strip().splitlines() or ["it says nothing"])[-1]
        raise NoHandoverError(f"the installed code does not start: {last}")
    if answer.decode().strip() != str(FORMAT):
        raise NoHandoverError(
            f"the installed code goes on with format {answer.decode().strip()}, and this appliance hands over format "
            f"{FORMAT}: drain it and start it anew"
        )


def execute(state: State) -> NoReturn:
    """Replaces this program by the installed code, with the same command line. Raises OSError if that fails."""
    file = os.memfd_create("remotegpu-handover", 0)
    with open(file, "w", closefd=False) as writer:
        json.dump({"format": FORMAT, **state}, writer)
    os.environ[_ENV] = str(file)
    # A second SIGHUP must not end this process before the new code has a handler.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 (no shell is wanted)


def received() -> State | None:
    """Returns the state from before a handover; None on an ordinary start, and from the second call on."""
    descriptor = os.environ.pop(_ENV, None)
    if descriptor is None:
        return None
    with open(int(descriptor)) as file:  # noqa: PTH123
        file.seek(0)
        state: State = json.load(file)
    if state["format"] != FORMAT:
        raise NoHandoverError(f"this code goes on with format {FORMAT}, and was handed format {state['format']}")
    return state
