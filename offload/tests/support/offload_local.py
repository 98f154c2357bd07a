"""Helpers that tests of offload share."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from remotegpu_offload.client.places import Wish
from remotegpu_offload.client.services import ClientService
from remotegpu_offload.client.session import Session, use
from remotegpu_offload.config.model import Config
from remotegpu_offload.wire import Message, Peer, Request


@contextlib.contextmanager
def peer_pair(*, start: bool = True) -> Iterator[tuple[Peer, Peer]]:
    """The program's and the acceptor's end of one connection, both in this process.

    With `start=False` the test serves first and then calls `start` of both.
    """
    ours, theirs = socket.socketpair()
    client = Peer(ours, name="the acceptor of this test")
    acceptor = Peer(theirs, name="the program of this test", accepting=True)
    try:
        if start:
            client.start()
            acceptor.start()
        yield client, acceptor
    finally:
        client.close()
        acceptor.close()
        assert not [t.name for t in threading.enumerate() if t in (client._reader, acceptor._reader)]


def echo(request: Request) -> Message:
    """Answers with the message that it got."""
    return Message({"got": request.header}, request.buffers)


class LocalAcceptors:
    """A connector that starts each acceptor as a process of its own, without an appliance.

    `python`: its interpreter; `program`: what it runs, with `--fd N` behind. `wishes` and `processes` tell what was
    wished for and started.
    """

    def __init__(
        self,
        python: str | os.PathLike[str] = sys.executable,
        program: Sequence[str] = ("-m", "remotegpu_offload.acceptor.session"),
    ) -> None:
        self.python = python
        self.program = program
        self.environ: dict[str, str] = {}
        self.wishes: list[Wish] = []
        self.processes: list[subprocess.Popen[bytes]] = []

    def __call__(self, wanted: Wish) -> tuple[socket.socket, dict[str, Any]]:
        ours, theirs = socket.socketpair()
        name = wanted.environment or f"local{len(self.processes)}"
        arguments = [*self.program, "--fd", str(theirs.fileno()), "--name", name]
        with theirs:
            process = subprocess.Popen(
                [self.python, *arguments], pass_fds=(theirs.fileno(),), env=os.environ | self.environ
            )
        self.wishes.append(wanted)
        self.processes.append(process)
        backend = wanted.backends[0] if wanted.backends else "cpu"
        environment = {"name": name, "backend": backend, "python": "", "packages": {}, "devices": []}
        return ours, {"environment": environment, "place": f"acceptor {name} of this test"}

    def close(self) -> None:
        for process in self.processes:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise


@contextlib.contextmanager
def local_session(
    config: Config | None = None,
    *,
    python: str | os.PathLike[str] = sys.executable,
    offered: Mapping[str, ClientService] | None = None,
    connector: LocalAcceptors | None = None,
) -> Iterator[Session]:
    """A session, also what `current()` gives, with a real acceptor process of `python`; no appliance."""
    acceptors = connector or LocalAcceptors(python)
    try:
        session = Session.open(config or Config(), connector=acceptors, offered=offered)
        try:
            use(session)
            yield session
        finally:
            session.close()
    finally:
        acceptors.close()
