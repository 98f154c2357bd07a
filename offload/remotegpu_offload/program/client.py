"""Program mode in the client: this process provides the terminal, files and signals of a program in the acceptor."""

import os
import queue
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final, Literal

from remotegpu_offload.client.services import services
from remotegpu_offload.client.session import Session
from remotegpu_offload.code.sources import Main
from remotegpu_offload.config.model import Config
from remotegpu_offload.program.terminal import terminal_size
from remotegpu_offload.wire import LostError, Service
from remotegpu_offload.wire.errors import how_ended

_FORWARDED: Final = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
)
# A second Ctrl-C within this time means that the first had no effect.
_IMPATIENT_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Target:
    """The program that Python was asked to run.

    `value`: the script's absolute path, the module's name, or the command.
    """

    kind: Literal["script", "module", "command"]
    value: str
    argv: tuple[str, ...]

    @property
    def folder(self) -> str:
        """The folder that Python inserts at the beginning of sys.path."""
        return os.path.dirname(os.path.realpath(self.value)) if self.kind == "script" else os.getcwd()


def open_session(config: Config, target: Target) -> Session:
    """Opens a session for a whole program. Raises OffloadError if no acceptor can be reached."""
    main = Main(target.value) if target.kind == "script" else None
    return Session.open(config, offered=services(config, main=main, program=True))


def run(session: Session, target: Target) -> int:
    """Runs the program in the session's acceptor. Returns its exit code, or minus the signal that ended it.

    A signal that ends the acceptor's process counts as the program's end, and a sentence on standard error reports it.

    Raises LostError if the acceptor is lost for another reason before the program has ended.
    """
    header = {"op": "run", "kind": target.kind, "argv": list(target.argv), "folder": target.folder}
    if target.kind != "script":
        header["value"] = target.value
    peer = session.peer
    try:
        with _signals(session):
            ending = peer.request(Service.PROGRAM, header).header
    except LostError:
        if (code := peer.exit_code()) >= 0:
            raise
        sys.stderr.write(f"remotegpu: {peer.name}: {how_ended(code)}; see its log on the appliance\n")
        return code
    return -int(ending["signal"]) if "signal" in ending else int(ending["exit"])


def end_like(result: int) -> int:
    """Returns the exit code for `result`.

    If `result` is a signal, does not return: this process ends by the same signal.
    """
    if result >= 0:
        return result
    sys.stdout.flush()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if -result not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(-result, signal.SIG_DFL)
    os.kill(os.getpid(), -result)
    return 128 - result


@contextmanager
def _signals(session: Session) -> Iterator[None]:
    """Forwards signals while entered. A thread sends them, because a handler must not wait for the connection."""
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    interrupted = 0.0

    def take(number: int, _frame: FrameType | None) -> None:
        nonlocal interrupted
        if number == signal.SIGINT:
            now = time.monotonic()
            if interrupted and now - interrupted < _IMPATIENT_SECONDS:
                os.write(2, b"\nremotegpu: interrupted twice: the acceptor ends the program\n")
                end_like(-number)
            interrupted = now
        waiting.put(number)

    def send() -> None:
        while number := waiting.get():
            header: dict[str, Any] = {"op": "signal", "number": number}
            if number == signal.SIGWINCH:
                header = {"op": "resize", "size": terminal_size()}
            try:
                session.peer.notify(Service.PROGRAM, header)
            except LostError:
                return

    sender = threading.Thread(target=send, name="remotegpu signals", daemon=True)
    sender.start()
    # A signal that was ignored at the start stays ignored, as under `nohup`.
    taken = [number for number in _FORWARDED if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, take) for number in taken}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        waiting.put(0)
