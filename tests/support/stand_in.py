"""An appliance with the real gateway and stand-in workers, and a tenant for tests. Needs neither CUDA nor Rust."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self
from uuid import UUID

from support.system import REMOTEGPU, free_port, until

from remotegpu.api.quantities import Ask
from remotegpu.appliance.gpus.hardware import Snapshot, parse_snapshot
from remotegpu.paths import find_dist
from remotegpu.rpc import WIRE_VERSION, pb
from remotegpu.rpc.client import Access, ApplianceClient, parse_endpoint

WORKER = Path(__file__).with_name("stand_in_worker.py")
MEMORY_MIB = 1024
TOTAL_BYTES = MEMORY_MIB << 20


# The line that makes a stand-in report a lost connection to its client.
LOST = 'raw {"op": "connection", "connected": false}'


def make_dist(folder: Path, python: str = sys.executable) -> Path:
    """Fills a folder like the build: the real gateway and `remotegpu-run`, the stand-in worker, empty libraries."""
    for name in ("bin", "client", "lib", "native"):
        (folder / name).mkdir(parents=True)
    for name in ("remotegpu-gateway", "remotegpu-run"):
        (folder / "bin" / name).symlink_to(find_dist().program(name))
    (folder / "lib" / "libremotegpu_sandbox.so").symlink_to(find_dist().sandbox)
    (folder / "dashboard").symlink_to(find_dist().dashboard)
    # Copied, because another uid may not be able to read the repository.
    worker_copy = folder / "bin" / WORKER.name
    worker_copy.write_bytes(WORKER.read_bytes())
    worker = folder / "bin" / "remotegpu-worker"
    worker.write_text(f'#!/bin/sh\nexec {python} {worker_copy} "$@"\n')
    worker.chmod(0o755)
    for library in ("client/libcuda.so.1", "native/libcuda.so.1", "native/libnvidia-ml.so.1"):
        (folder / library).touch()
    return folder


def snapshot_of(dist: Path) -> Snapshot:
    """Returns the snapshot of a stand-in worker."""
    command = [str(dist / "bin" / "remotegpu-worker"), "--snapshot"]
    uuid = {"REMOTEGPU_SOFTGPU_UUIDS": UUID(int=1).hex}
    return parse_snapshot(subprocess.check_output(command, env={**os.environ, **uuid}, text=True))


class StandIn:
    """The appliance's process. Workers have the same uid, since another uid may not be able to read this Python."""

    def __init__(
        self,
        dist: Path,
        *options: str,
        env: dict[str, str] | None = None,
        access: Access = Access(),
        prefix: tuple[str, ...] = (),
    ) -> None:
        self.environment = {**os.environ, "REMOTEGPU_DIST": str(dist), **(env or {})}
        self.endpoint = f"127.0.0.1:{free_port()}"
        self.access = access
        command = [*prefix, REMOTEGPU, "appliance", "--listen", self.endpoint, "--memory", f"{MEMORY_MIB}MiB"]
        command += ["--no-self-test", "--uid-base", "0", "--drain-seconds", "0", "--grace", "0s", *options]
        ready, theirs = os.pipe()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed in `close`)
        self.process = subprocess.Popen(
            [*command, "--ready-fd", str(theirs)], env=self.environment, pass_fds=(theirs,), stderr=self._log
        )
        os.close(theirs)
        with os.fdopen(ready) as pipe:
            assert pipe.readline(), self.log
        self.client = ApplianceClient(parse_endpoint(self.endpoint), access, call_seconds=20)
        self.open_connections = contextlib.ExitStack()

    @property
    def log(self) -> str:
        # `pread` does not move the file position, at which the appliance writes.
        return os.pread(self._log.fileno(), 1 << 20, 0).decode()

    @property
    def gpus(self) -> list[pb.Gpu]:
        return list(self.client.inventory().gpus)

    @property
    def leased(self) -> int:
        return sum(gpu.leased_bytes for gpu in self.gpus)

    def cli(self, *arguments: str, timeout: float = 20) -> subprocess.CompletedProcess[str]:
        """Runs a command of remotegpu, with this appliance as the default."""
        return self.start([REMOTEGPU, *arguments], timeout)

    def start(self, command: list[str], timeout: float = 20) -> subprocess.CompletedProcess[str]:
        environment = {**self.environment, "REMOTEGPU_APPLIANCE": self.endpoint}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout)

    def lease(self, ask: Ask = Ask(), *, hold: bool = True) -> Tenant:
        with self.client.open_lease(ask, "test", wait=False) as events:
            granted = next(event.granted for event in events if event.HasField("granted"))
        return Tenant(self, granted, hold=hold)

    def close(self) -> None:
        self.open_connections.close()
        self.client.close()
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        self.process.kill()
        self.process.wait()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Tenant:
    """A lease and its holding connection."""

    def __init__(self, appliance: StandIn, granted: pb.Granted, *, hold: bool) -> None:
        self.appliance = appliance
        self.granted = granted
        self.holding = self.connect(b"RGL1", granted.lease_id, granted.lease_secret) if hold else None

    def connect(self, kind: bytes, some_id: str, ticket: str) -> socket.socket:
        hello = self.appliance.client.hello()
        connection = self.appliance.client.connect_data(hello.data_port, tls=hello.tls)
        connection.sendall(kind + bytes.fromhex(some_id) + bytes.fromhex(ticket))
        self.appliance.open_connections.callback(connection.close)
        connection.settimeout(20)
        if connection.recv(1) != b"K":
            connection.close()
            raise ConnectionRefusedError("the gateway did not admit the connection")
        return connection

    def open_session(self, pid: int = 1, table_hash: int = 7, process: str = "") -> pb.OpenSessionReply:
        """Opens a session. Returns the reply, which may have a refusal."""
        reply: pb.OpenSessionReply = self.appliance.client._stub.OpenSession(
            pb.OpenSessionRequest(
                versions=pb.Versions(wire=WIRE_VERSION, table_hash=table_hash, program="test"),
                lease_id=self.granted.lease_id,
                lease_secret=self.granted.lease_secret,
                pid=pid,
                process_name=f"process {pid}",
                process=process,
            ),
            timeout=20,
        )
        return reply

    def session(self, pid: int = 1, process: str = "") -> Session:
        reply = self.open_session(pid, process=process)
        assert not reply.refusal, reply.refusal
        return Session(self.appliance, self.connect(b"RGP1", reply.session_id, reply.ticket), reply)

    def let_go(self) -> None:
        """Closes the holding connection, as the kernel does when a process ends."""
        assert self.holding is not None
        self.holding.close()

    def close(self) -> None:
        self.appliance.client.close_lease(self.granted.lease_id, self.granted.lease_secret)
        if self.holding is not None:
            self.holding.close()


class Session:
    """A data connection to a stand-in worker."""

    def __init__(self, appliance: StandIn, connection: socket.socket, reply: pb.OpenSessionReply) -> None:
        self.connection = connection
        self.reply = reply
        self._lines = connection.makefile("r")
        appliance.open_connections.callback(self._lines.close)

    def ask(self, line: str) -> Any:
        """Sends the worker a line to execute. Returns the answer."""
        self.connection.sendall(line.encode() + b"\n")
        return json.loads(self._lines.readline())

    def tell(self, line: str) -> None:
        self.connection.sendall(line.encode() + b"\n")

    def grant(self, size: int, want: int | None = None, device: int = 0) -> int:
        granted: int = self.ask(f"grant {device} {size} {want or size}")["size"]
        return granted

    def rest(self) -> str:
        """Returns all remaining text until the end of the connection."""
        with contextlib.suppress(ConnectionError):
            return self._lines.read()
        return ""

    def close(self) -> None:
        self._lines.close()
        self.connection.close()


@contextlib.contextmanager
def all_back(appliance: StandIn) -> Iterator[None]:
    """Fails if anything is still leased five seconds after the block."""
    yield
    until(lambda: appliance.leased == 0 and not appliance.client.inventory().leases, 5, "the share is back")
