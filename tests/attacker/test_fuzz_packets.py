"""Messages of a compromised worker, a gateway or an appliance on their sockets are errors of their sender: no part of
ours ends, and others are served. Each test lasts as long as REMOTEGPU_FUZZ_SECONDS says, and starts from committed
seeds.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import socket
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from attacker.raw import CODES, HEADER, hex_text
from support.mutation import changed, changed_bytes, for_a_while, seeds
from support.stand_in import StandIn, make_dist

from remotegpu.api.names import SOFTGPU_MEMORY_ENV
from remotegpu.api.quantities import Ask
from remotegpu.appliance._generated import gateway_events, worker_requests
from remotegpu.appliance.packets import decode, packet_pair
from remotegpu.paths import find_dist
from remotegpu.rpc import WIRE_VERSION

SEEDS = Path(__file__).parent / "seeds"
MIB = 1 << 20
#: Packets to one worker's socket before it gets a new one, since a malformed packet ends the channel.
_PACKETS = 200
#: Packets to a gateway, or to the socket of a worker's turns, before another client has to be served.
_BETWEEN = 50


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    return make_dist(tmp_path / "dist")


def test_packets_of_a_worker_end_nobody_elses_session(dist: Path) -> None:
    """Packets on the control socket of a real appliance."""
    known = seeds(SEEDS / "packets.json")
    with StandIn(dist) as appliance:
        neighbour = appliance.lease(Ask(milli_per_gpu=100)).session()
        taken, sent = appliance.lease(Ask(milli_per_gpu=100)), _PACKETS
        session = None
        for chance in for_a_while("packet"):
            if session is None or sent >= _PACKETS:
                if session is not None:
                    session.close()
                session, sent = taken.session(sent), 0
            packet = json.dumps(changed(chance.choice(known), chance))
            try:
                session.tell(f"raw {packet}")
                sent += 1
            except OSError:
                sent = _PACKETS
        assert neighbour.grant(MIB) == MIB
        assert appliance.process.poll() is None
        # The stand-in for a worker may fail when its channel is closed; the appliance may not.
        assert "/remotegpu/appliance/" not in appliance.log, appliance.log[-4000:]


def test_packets_of_a_gateway_are_events_or_nothing() -> None:
    known = seeds(SEEDS / "events.json")
    for chance in for_a_while("event"):
        text = json.dumps(changed(chance.choice(known), chance)).encode()
        if chance.randrange(4) == 0:
            text = changed_bytes(text, chance)
        if (packet := decode(text)) is not None:
            gateway_events.read(packet)


def test_packets_of_a_worker_are_requests_or_nothing() -> None:
    known = seeds(SEEDS / "packets.json")
    for chance in for_a_while("request"):
        worker_requests.read(changed(chance.choice(known), chance))


class Gateway:
    """The real program; this test plays the appliance."""

    def __init__(self, folder: Path) -> None:
        self.control, theirs = packet_pair()
        self.control.settimeout(20)
        self.errors = (folder / "errors").open("w+b")
        anywhere = ("--listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0")
        program, service = str(find_dist().program("remotegpu-gateway")), str(folder / "service")
        command = [program, *anywhere, "--control-socket", service]
        with theirs:
            self.process = subprocess.Popen(
                [*command, "--control-fd", str(theirs.fileno())], pass_fds=(theirs.fileno(),), stderr=self.errors
            )
        self.port = self.hear("listening")["port"]
        self.number = 1 << 40

    def hear(self, op: str) -> dict[str, Any]:
        """Returns the next event of this name, and drops others."""
        while True:
            event: dict[str, Any] = json.loads(self.control.recv(1 << 16))
            if event["op"] == op:
                return event

    def order(self, packet: dict[str, Any], *fds: int) -> None:
        socket.send_fds(self.control, [json.dumps(packet).encode()], list(fds))

    def sync(self) -> None:
        """Waits until all earlier orders are carried out."""
        self.number += 1
        self.order({"op": "sync", "number": self.number})
        while self.hear("synced")["number"] != self.number:
            pass

    def serves(self) -> None:
        """Checks that a new client can still hold a lease."""
        name, ticket = secrets.token_hex(16), secrets.token_hex(32)
        self.order({"op": "lease", "id": name, "ticket": ticket})
        with socket.create_connection(("127.0.0.1", self.port), 20) as connection:
            connection.sendall(b"RGL1" + bytes.fromhex(name) + bytes.fromhex(ticket))
            assert connection.recv(1) == b"K"
            while self.hear("lease_held")["id"] != name:
                pass
        self.order({"op": "forget", "id": name})
        self.sync()

    def close(self) -> None:
        """Checks that the gateway ends when the appliance does, and has not panicked."""
        self.control.close()
        assert self.process.wait(20) == 0
        self.errors.seek(0)
        assert b"panicked" not in self.errors.read()
        self.errors.close()


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with tempfile.TemporaryDirectory() as folder:
        made = Gateway(Path(folder))
        try:
            yield made
            made.close()
        finally:
            made.process.kill()
            made.process.wait()


def _descriptors(chance: random.Random) -> list[int]:
    """No descriptor, a right one, one of another kind, or several."""
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made = [each.detach() for each in pair] + [os.open("/dev/null", os.O_RDWR), os.open("/", os.O_RDONLY)]
    kept = chance.choice([[], made[:1], made[:1], made[2:3], made[3:], made, made * 2])
    for each in made:
        if each not in kept:
            os.close(each)
    return kept


def test_orders_of_an_appliance_end_no_gateway(gateway: Gateway) -> None:
    """An invalid order is a line of the gateway's log, and ends no sessions."""
    known = seeds(SEEDS / "orders.json")
    for turn, chance in enumerate(for_a_while("order")):
        text = json.dumps(changed(chance.choice(known), chance)).encode()
        if chance.randrange(4) == 0:
            text = changed_bytes(text, chance)
        descriptors = _descriptors(chance)
        # An empty packet is EOF.
        socket.send_fds(gateway.control, [text or b" "], descriptors)
        for each in set(descriptors):
            os.close(each)
        if turn % _BETWEEN == 0:
            gateway.sync()
            gateway.serves()


def _joins(gateway: Gateway) -> socket.socket:
    """Adds a lease with a worker on the same GPU, and returns the worker's socket of turns."""
    lease, (ours, theirs) = secrets.token_hex(16), packet_pair()
    ours.settimeout(20)
    with theirs:
        gateway.order({"op": "share", "lease": lease, "places": [{"gpu": 0, "weight": 500, "limit": 1000}]})
        gateway.order({"op": "turns", "id": secrets.token_hex(16), "lease": lease}, theirs.fileno())
    # A gateway waits for an appliance that reads nothing.
    gateway.sync()
    assert json.loads(ours.recv(1 << 16)) == {"op": "begin"}
    return ours


def test_words_about_turns_keep_nobody_from_having_one(gateway: Gateway) -> None:
    """Messages of a compromised worker, on the socket by which the gateway gives it turns."""
    known, neighbour, taken = seeds(SEEDS / "words.json"), _joins(gateway), _joins(gateway)
    for turn, chance in enumerate(for_a_while("word")):
        text = json.dumps(changed(chance.choice(known), chance)).encode()
        if chance.randrange(4) == 0:
            text = changed_bytes(text, chance)
        try:
            taken.send(text or b" ", socket.MSG_DONTWAIT)
        except OSError:
            # The gateway closed it, or reads nothing.
            taken.close()
            taken = _joins(gateway)
        if turn % _BETWEEN == 0:
            neighbour.send(b'{"op": "want", "device": 0}')
            while (told := json.loads(neighbour.recv(1 << 16)))["op"] != "turn":
                pass
            done = {"op": "done", "device": 0, "turn": told["turn"], "more": False}
            neighbour.send(json.dumps(done).encode())
    taken.close()
    neighbour.close()


class Worker:
    """The real program, on the software GPU. This test plays appliance, gateway and client."""

    def __init__(self, errors: IO[bytes]) -> None:
        pairs = [packet_pair(), packet_pair()]
        (self.control, _), (self.data, _) = pairs
        theirs = [pair[1].fileno() for pair in pairs]
        program, driver = str(find_dist().program("remotegpu-worker")), str(find_dist().native / "libcuda.so.1")
        options = ("--control-fd", str(theirs[0]), "--data-fd", str(theirs[1]), "--grace", "60", "--no-files")
        environment = {"PATH": "/usr/bin:/bin", SOFTGPU_MEMORY_ENV: str(64 * MIB)}
        self.process = subprocess.Popen(
            [program, "--driver", driver, *options], env=environment, pass_fds=theirs, stderr=errors
        )
        for _, end in pairs:
            end.close()
        self.control.settimeout(20)
        assert json.loads(self.control.recv(1 << 16)) == {"op": "ready"}
        told = subprocess.run([program, "--snapshot", "--driver", driver], env=environment, capture_output=True)
        table = json.loads(told.stdout)["table_hash"]
        self.client, end = socket.socketpair()
        with end:
            socket.send_fds(self.data, [b"{}"], [end.fileno()])
        opens = struct.pack("<IQI", WIRE_VERSION, table, 1) + hex_text("fuzz")
        self.client.sendall(HEADER.pack(len(opens), CODES["Open"], 1, 0, 0) + opens)
        assert self.client.recv(HEADER.size)
        # From here on no receive waits.
        for end in (self.control, self.data):
            end.setblocking(False)

    @property
    def over(self) -> bool:
        """Whether the worker has ended: by an order (exit code 0) or an impossible message (1), never by a crash."""
        if self.process.poll() is None:
            return False
        assert self.process.returncode in (0, 1), self.process.returncode
        return True

    def hear(self) -> None:
        """Drops its messages: a worker waits for an appliance that reads nothing."""
        with contextlib.suppress(OSError):
            while self.control.recv(1 << 16):
                pass

    def close(self) -> None:
        for end in (self.control, self.data, self.client):
            end.close()
        self.process.wait(20)


def test_orders_and_connections_make_no_worker_stumble(tmp_path: Path) -> None:
    """Random orders of an appliance and a gateway. The worker, another tenant's neighbour, may end but not crash."""
    known = [("control", each) for each in seeds(SEEDS / "worker_orders.json")]
    known += [("data", each) for each in seeds(SEEDS / "passed.json")]
    with (tmp_path / "errors").open("w+b") as errors:
        worker = Worker(errors)
        for chance in for_a_while("worker", least=20):
            for _ in range(_BETWEEN):
                way, seed = chance.choice(known)
                text = json.dumps(changed(seed, chance)).encode()
                if chance.randrange(4) == 0:
                    text = changed_bytes(text, chance)
                descriptors = _descriptors(chance)
                with contextlib.suppress(OSError):
                    to: socket.socket = getattr(worker, way)
                    socket.send_fds(to, [text[:4000] or b" "], descriptors)
                for each in set(descriptors):
                    os.close(each)
                worker.hear()
            if worker.over or chance.randrange(10) == 0:
                worker.close()
                assert worker.over
                worker = Worker(errors)
        worker.close()
        errors.seek(0)
        assert b"panicked" not in errors.read()
