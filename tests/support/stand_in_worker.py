"""A stand-in for remotegpu-worker, with the real control protocol and a simple language on the data connection.

It executes each line from the connection and answers with one line of JSON, so that a test can act as the tenant. The
commands are those of `Worker.carry_out`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import select
import socket
import time
from pathlib import Path
from typing import Any

TOTAL = 1 << 30


def snapshot() -> dict[str, Any]:
    uuids = os.environ.get("REMOTEGPU_SOFTGPU_UUIDS", "").split(",")
    device = {"name": "Stand-in GPU", "memory_bytes": TOTAL, "pci": [0, 1, 0]}
    device["attributes"] = {"1": 1024, "33": 1}
    devices = [{**device, "uuid": uuid} for uuid in uuids]
    landlock = os.environ.get("REMOTEGPU_LOG") != "no-landlock"
    return {"driver_version": 13040, "table_hash": 7, "devices": devices, "landlock": landlock}


def identity() -> dict[str, Any]:
    """Returns properties that the appliance gave this process: user, groups, folder, sockets and limits."""
    links = [str(fd.readlink()) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
    limits = {"core": resource.getrlimit(resource.RLIMIT_CORE), "nofile": resource.getrlimit(resource.RLIMIT_NOFILE)}
    return {
        "uid": os.getuid(),
        "gid": os.getgid(),
        "groups": os.getgroups(),
        "cwd": str(Path.cwd()),
        "sockets": sum(link.startswith("socket:") for link in links),
        "limits": limits,
    }


class Worker:
    def __init__(self, control: socket.socket, turns: socket.socket | None = None) -> None:
        self.control = control
        self.turns = turns
        # The gateway's messages about turns at a GPU.
        self.heard: list[dict[str, Any]] = []
        self.next_id = 1
        self.eaten: list[bytes] = []
        self.overfill = 0
        # Received orders of the appliance: "giveway", "clientended" and "handon".
        self.told: list[str] = []

    def send(self, **packet: Any) -> None:
        self.control.send(json.dumps(packet).encode())

    def ask(self, **packet: Any) -> dict[str, Any]:
        self.next_id += 1
        self.send(id=self.next_id, **packet)
        while True:
            answer: dict[str, Any] = json.loads(self.control.recv(65536))
            if answer["op"] != "settle":
                return answer
            self.settle(answer)

    def settle(self, order: dict[str, Any]) -> None:
        """Answers a `settle` order at once, since each line of the tenant was executed when it came."""
        self.send(op="settled", id=order["id"])

    def carry_out(self, line: str) -> Any:
        verb, *rest = line.split()
        match verb:
            case "grant":
                device, least, want = map(int, rest)
                return self.ask(op="grant", device=device, least=least, want=want)
            case "return":
                return self.send(op="return", device=int(rest[0]), size=int(rest[1]))
            case "leaving":
                return self.send(op="leaving", device=int(rest[0]), size=int(rest[1]))
            case "memory":
                return self.ask(op="memory", device=int(rest[0]))
            case "told":
                return self.told
            case "pid":
                return os.getpid()
            case "environ":
                return dict(os.environ)
            case "identity":
                return identity()
            case "unhealthy":
                return self.send(op="unhealthy", device=int(rest[0]), code=700, message=" ".join(rest[1:]))
            case "stats":
                return self.send(op="stats", commands=int(rest[0]), launches=0, bytes_in=0, bytes_out=0)
            case "raw":
                return self.control.send(line.removeprefix("raw ").encode())
            case "cgroups":
                return Path("/proc/self/cgroup").read_text().split()
            case "eat":
                # The number of MiB of host memory to allocate.
                return self.eaten.append(os.urandom(1 << 20) * int(rest[0]))
            case "overfill":
                # The number of bytes to write beyond the size of the next image.
                self.overfill = int(rest[0])
                return None
            case "folders":
                return self.send_folders(int(rest[0]))
            case "say":
                assert self.turns is not None
                return self.turns.send(line.removeprefix("say ").encode())
            case "forget":
                return self.heard.clear()
            case "hear":
                return self.hear(rest[0], float(rest[1]))
            case "die":
                os.kill(os.getpid(), int(rest[0]))
        raise ValueError(line)

    def send_folders(self, count: int) -> None:
        """Sends packets with the descriptor of a folder, which is not a regular file."""
        folder = os.open("/", os.O_RDONLY)
        for _ in range(count):
            with contextlib.suppress(OSError):
                socket.send_fds(self.control, [b'{"op": "log"}'], [folder])

    def hear(self, word: str, seconds: float) -> list[dict[str, Any]]:
        """Returns the messages about turns, once `word` is among them or no message came for `seconds`."""
        assert self.turns is not None
        while all(each["op"] != word for each in self.heard) and select.select([self.turns], [], [], seconds)[0]:
            self.heard.append(json.loads(self.turns.recv(65536)))
        return self.heard

    def suspend(self, image: int) -> None:
        size = os.fstat(image).st_size
        os.pwrite(image, bytes(self.overfill), size)
        self.send(op="suspended", bytes=size, kept=[0])

    def serve(self, data: socket.socket) -> None:
        connection: socket.socket | None = None
        while True:
            readable, _, _ = select.select([self.control, connection or data], [], [])
            if self.control in readable:
                packet, fds, _, _ = socket.recv_fds(self.control, 65536, 1)
                if packet and json.loads(packet)["op"] == "suspend":
                    self.suspend(fds[0])
                    continue
                if packet and json.loads(packet)["op"] == "settle":
                    self.settle(json.loads(packet))
                    continue
                if packet and json.loads(packet)["op"] in ("giveway", "clientended", "handon"):
                    self.told.append(json.loads(packet)["op"])
                    continue
                if packet and connection is not None and json.loads(packet)["op"] == "end":
                    connection.sendall(packet + b"\n")
                return
            if connection is None:
                packet, fds, _, _ = socket.recv_fds(data, 65536, 1)
                if not fds:
                    return
                connection = socket.socket(fileno=fds[0])
                continue
            line = connection.recv(65536)
            if not line:
                return
            connection.sendall(json.dumps(self.carry_out(line.decode().strip())).encode() + b"\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--snapshot", action="store_true")
    parser.add_argument("--driver")
    parser.add_argument("--hide", action="append")
    parser.add_argument("--no-files", action="store_true")
    parser.add_argument("--require-landlock", action="store_true")
    parser.add_argument("--budget", action="append")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--grace", type=int)
    parser.add_argument("--control-fd", type=int)
    parser.add_argument("--data-fd", type=int)
    parser.add_argument("--turns-fd", type=int)
    options = parser.parse_args()
    if options.snapshot:
        print(json.dumps(snapshot()))
        return
    mode = os.environ.get("REMOTEGPU_LOG", "")
    if mode == "broken":
        raise SystemExit(3)
    turns = None if options.turns_fd is None else socket.socket(fileno=options.turns_fd)
    worker = Worker(socket.socket(fileno=options.control_fd), turns)
    time.sleep(0.05 if mode == "slow" else 0)
    worker.send(op="ready")
    worker.serve(socket.socket(fileno=options.data_fd))


if __name__ == "__main__":
    main()
