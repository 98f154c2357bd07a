"""The zygote: an interpreter with its frameworks imported, which forks a process for each session.

`python -m remotegpu_offload.acceptor.zygote --control-fd N`. The zygote opens no device, keeps no secret, and sees no
data of the sessions. The appliance sends `{"op": "fork", ...}` with two sockets: one controls the session, the other
delivers the client's connection.
"""

import argparse
import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any, Final, NoReturn

from remotegpu_offload.acceptor import forked, packets, restrictions, session, syscalls
from remotegpu_offload.acceptor.keeper import ended_children, wake_on_child
from remotegpu_offload.acceptor.packets import Packet

# Frameworks that sessions need, and whose import takes seconds. Each is imported only if the environment has it.
FRAMEWORKS: Final = ("numpy", "torch")


def preload() -> str:
    """Imports the frameworks, the features and the sandbox library. Returns "", or the reason of a failure."""
    for name in FRAMEWORKS:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                return f"`import {name}` fails in {sys.executable}: it needs {error.name}; install it there"
        except Exception as error:
            return f"`import {name}` fails in {sys.executable}: {type(error).__name__}: {error}; install it anew there"
    try:
        restrictions.library()
    except OSError as error:
        return str(error.strerror)
    try:
        session.import_features()
    except ImportError as error:
        return f"{sys.executable} cannot import remotegpu's own modules ({error}): it must be Python 3.11 or later"
    return ""


def serve(control: socket.socket) -> None:
    """Forks sessions until the appliance closes `control`. Blocks."""
    syscalls.become_subreaper()
    sessions: dict[int, str] = {}
    woken = wake_on_child()
    while True:
        ready = select.select([control.fileno(), woken], [], [])[0]
        if woken in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(woken, 4096)
            for pid, code in ended_children():
                if session := sessions.pop(pid, ""):
                    packets.send(control, {"op": "exited", "id": session, "code": code})
        if control.fileno() in ready:
            received = packets.receive(control)
            if received is None:
                return
            packet, descriptors = received
            try:
                _fork(packet, descriptors, control, sessions)
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)


def _fork(packet: Packet, descriptors: list[int], control: socket.socket, sessions: dict[int, str]) -> None:
    """Forks one session. Answers with its process id and a pidfd, or with the reason of a failure."""
    told, telling = os.pipe()
    try:
        child = os.fork()
    except OSError as error:
        os.close(told)
        os.close(telling)
        packets.send(control, {"op": "failed", "id": packet["id"], "reason": f"no process can be started: {error}"})
        return
    if child == 0:
        os.close(told)
        _never_returning(forked.become_session, packet, descriptors, telling)
    os.close(telling)
    with os.fdopen(told, "rb") as pipe:
        said = pipe.read().decode(errors="replace")
    if not said.isdigit():
        packets.send(control, {"op": "failed", "id": packet["id"], "reason": said or "it ended at its start"})
        return
    pid = int(said)
    sessions[pid] = packet["id"]
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return  # ended already; the end is reported when the process is collected
    try:
        packets.send(control, {"op": "forked", "id": packet["id"], "pid": pid}, [process])
    finally:
        os.close(process)


def _never_returning(function: Callable[..., Any], *arguments: Any) -> NoReturn:
    """Runs a function in the forked child and exits, so that no code of the zygote runs there."""
    code = 1
    try:
        function(*arguments)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m remotegpu_offload.acceptor.zygote")
    parser.add_argument("--control-fd", type=int, required=True)
    control = socket.socket(fileno=parser.parse_args().control_fd)
    control.set_inheritable(False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    reason = preload()
    # Objects that exist now are never freed. Otherwise a collection would touch reference counts, and forks copy the
    # pages.
    gc.collect()
    gc.freeze()
    packets.send(control, {"op": "broken", "reason": reason} if reason else {"op": "ready"})
    if not reason:
        with contextlib.suppress(OSError):
            serve(control)


if __name__ == "__main__":
    main()
