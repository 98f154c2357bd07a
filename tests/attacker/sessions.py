"""Attacks from inside a session: a tenant that speaks the wire by itself, or has taken its worker over.

The appliance, the workers and the software GPU are real. All tenants have the same user id, as in a pod that may not
change it: the sandbox alone keeps their workers apart.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from attacker.attack import Control, How, Outcome, dist_without, launcher
from attacker.beside import Giver, Stripe, memfd
from attacker.raw import CODES, CONTEXT, HEADER, LEGACY, MIB, NEED_IMAGE, EndedError, Raw, closes, hex_text
from support.stand_in import StandIn, Tenant
from support.system import DIST

from remotegpu.api.quantities import Ask
from remotegpu.rpc.client import Access

SHARE = 256 * MIB
IMAGES = 8 * MIB
TAKEN_OVER = 0xBFFF
TOKEN, MALLORYS = "token-of-alice", "token-of-mallory"


@dataclass
class Sessions:
    """The world of these attacks. Each tenant has a quarter of a GPU of 1 GiB."""

    appliance: StandIn
    tokens: Path
    control: Control | None

    @contextlib.contextmanager
    def lease(self) -> Iterator[Tenant]:
        tenant = self.appliance.lease(Ask(memory_bytes=SHARE))
        try:
            yield tenant
        finally:
            tenant.close()

    @contextlib.contextmanager
    def session(self) -> Iterator[Raw]:
        with self.lease() as tenant, Raw(tenant) as session:
            yield session

    def workers(self) -> set[int]:
        children = Path(f"/proc/{self.appliance.process.pid}/task/{self.appliance.process.pid}/children").read_text()
        named = {int(pid): Path(f"/proc/{pid}/comm").read_text().strip() for pid in children.split()}
        return {pid for pid, name in named.items() if name.startswith("remotegpu-worke")}

    @contextlib.contextmanager
    def victim(self) -> Iterator[tuple[Raw, int]]:
        """A session of another tenant, and the process id of its worker."""
        before = self.workers()
        with self.session() as session:
            (worker,) = self.workers() - before
            yield session, worker


@contextlib.contextmanager
def world(control: Control | None) -> Iterator[Sessions]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "tokens").write_text(f"[admin]\nalice:{TOKEN}\n[user]\nmallory:{MALLORYS}\n")
        build = control is not None and control.how is How.BUILD
        dist = stack.enter_context(dist_without(control.name)) if control is not None and build else DIST
        options = ("--tokens", str(folder / "tokens"), "--image-memory", f"{IMAGES >> 20}MiB")
        appliance = StandIn(dist, *options, access=Access(TOKEN), prefix=launcher(control))
        yield Sessions(stack.enter_context(appliance), folder / "tokens", control)


def _code(number: int) -> str:
    return f"CUDA error {number}" if number else "OK"


# ---- memory of others


def memory_of_another_lease(world: Sessions) -> Outcome:
    """The token of what alice has exported to the other processes of her own lease."""
    canary = secrets.token_bytes(32)
    with world.session() as alice, world.session() as mallory:
        alice.allocate(2 * MIB)
        assert alice.write(alice.arena, canary) == 0
        token = alice.ask("SlabExport", struct.pack("<Q", alice.arena))
        assert token.code == 0
        imported = mallory.ask("SlabImport", struct.pack("<IQQ", 0, mallory.arena, 2 * MIB) + token.tail)
        got = mallory.read(mallory.arena, 32).data if imported.code == 0 else b""
        return Outcome(got == canary, _code(imported.code))


def memory_before_it_is_written(world: Sessions) -> Outcome:
    """All of it, after another tenant has left a pattern in all of its own."""
    canary = secrets.token_bytes(32)
    with world.session() as alice:
        alice.allocate(32 * MIB)
        for at in range(0, 32 * MIB, 2 * MIB):
            assert alice.write(alice.arena + at, canary) == 0
    with world.session() as mallory:
        mallory.allocate(SHARE)
        for at in range(0, SHARE, 2 * MIB):
            got = mallory.read(mallory.arena + at, 2 * MIB)
            assert got.code == 0
            if any(got.data):
                return Outcome(True, "not zero")
    return Outcome(False, "zero")


def outside_of_the_arena(world: Sessions) -> Outcome:
    """Page-locked memory of the worker, through which the session's own canary went. Its addresses are known."""
    canary = secrets.token_bytes(64)
    with world.victim() as (session, worker):
        session.allocate(2 * MIB)
        assert session.write(session.arena, canary * 4096) == 0
        codes = set()
        for start, end in _written_by(worker, session):
            payload = [
                session.frame(
                    "CopyToHost",
                    struct.pack("<QQ5Q", CONTEXT, at, 4096, 1, 1, 4096, 4096) + struct.pack("<QQ", 0, 4096),
                    LEGACY,
                )
                for at in range(start, min(end, start + 64 * MIB), 64 << 10)
            ]
            first = session.seq - len(payload) + 1
            session.connection.sendall(b"".join(payload))
            for seq in range(first, session.seq + 1):
                reply = session.answer(seq)
                codes.add(reply.code)
                if canary in reply.data:
                    return Outcome(True, "OK")
    return Outcome(False, " ".join(sorted(map(_code, codes))))


def write_outside_of_the_arena(world: Sessions) -> Outcome:
    """The worker's page-locked memory, through which what others ask of it goes."""
    canary = secrets.token_bytes(64)
    with world.victim() as (session, worker):
        session.allocate(2 * MIB)
        assert session.write(session.arena, canary * 4096) == 0
        codes = set()
        for start, end in _written_by(worker, session):
            for at in range(start, min(end, start + MIB), 64 << 10):
                try:
                    code = session.write(at, canary)
                except EndedError:
                    return Outcome(True, "ended")
                codes.add(code)
                if code == 0:
                    return Outcome(True, "OK")
        return Outcome(False, " ".join(sorted(map(_code, codes))))


def _written_by(worker: int, session: Raw) -> list[tuple[int, int]]:
    found = re.findall(r"^([0-9a-f]+)-([0-9a-f]+) rw", Path(f"/proc/{worker}/maps").read_text(), re.MULTILINE)
    ranges = [(int(start, 16), int(end, 16)) for start, end in found]
    return [(start, end) for start, end in ranges if not session.arena <= start < session.arena + session.arena_bytes]


def forged_handles(world: Sessions) -> Outcome:
    """The ids of alice's module, stream and event, as she uses them. The canary is that one of them is found."""
    with world.session() as alice, world.session() as mallory:
        assert alice.grant(2 * MIB).code == 0
        assert alice.load(_module(4), 2 * MIB, module=7).code == 0
        alice.send("StreamCreate", struct.pack("<QQIi", 8, CONTEXT, 0, 0))
        alice.send("EventCreate", struct.pack("<QQI", 9, CONTEXT, 0))
        assert alice.synchronize() == 0
        codes = {
            mallory.ask("ModuleGlobal", struct.pack("<Q", 7) + hex_text("big")).code,
            mallory.ask("StreamQuery", b"", 8).code,
            mallory.ask("EventQuery", struct.pack("<QQ", 9, 1)).code,
        }
        return Outcome(codes != {400}, " ".join(sorted(map(_code, codes))))


# ---- other connections of alice's session, with a ticket of mallory's own


def stripe_of_another_session(world: Sessions) -> Outcome:
    """By which bytes of alice's copies would go."""
    with world.session() as alice, world.session() as mallory:
        accepted = Stripe(alice, 1, mallory.reply.ticket).accepted
        return Outcome(accepted, "admitted" if accepted else "closed")


def memory_for_another_session(world: Sessions) -> Outcome:
    """From which alice's worker would read what her program copies."""
    with world.session() as alice, world.session() as mallory:
        answer = b""
        with contextlib.suppress(ConnectionError):
            answer = Giver(alice, mallory.reply.ticket).give(memfd())
        return Outcome(answer == b"K", "admitted" if answer else "closed")


# ---- more than the share


def grant_beyond_the_share(world: Sessions) -> Outcome:
    with world.session() as mallory:
        reply = mallory.grant(2 * SHARE)
        return Outcome(reply.code == 0, _code(reply.code))


def map_without_a_grant(world: Sessions) -> Outcome:
    with world.session() as mallory:
        code = mallory.map(mallory.arena, SHARE + 2 * MIB)
        return Outcome(code == 0, _code(code))


def array_without_a_grant(world: Sessions) -> Outcome:
    with world.session() as mallory:
        # 8192 x 8192 texels of one float: CU_AD_FORMAT_FLOAT.
        array = struct.pack("<QQQQQIII", CONTEXT, mallory.arena, 8192, 8192, 0, 0x20, 1, 0)
        reply = mallory.ask("ArrayCreate", array)
        return Outcome(reply.code == 0, _code(reply.code))


def heap_without_a_grant(world: Sessions) -> Outcome:
    with world.session() as mallory:
        malloc_heap = 2
        reply = mallory.ask("ContextLimit", struct.pack("<QIQ", CONTEXT, malloc_heap, 2 * SHARE))
        return Outcome(reply.code == 0, _code(reply.code))


def _module(size: int) -> bytes:
    return f".version 8.0\n.target sm_80\n.address_size 64\n.visible .global .align 4 .b8 big[{size}];\n".encode()


def module_without_a_grant(world: Sessions) -> Outcome:
    with world.session() as mallory:
        reply = mallory.load(_module(2 * SHARE), 4 * SHARE)
        return Outcome(reply.code == 0, _code(reply.code))


def module_that_lies(world: Sessions) -> Outcome:
    """It says that it takes 1 MiB of the device."""
    with world.session() as mallory:
        assert mallory.grant(2 * MIB).code == 0
        reply = mallory.load(_module(2 * SHARE), MIB)
        return Outcome(reply.code == 0, _code(reply.code))


def return_what_is_used(world: Sessions) -> Outcome:
    """Then the appliance would grant it again, while it is still mapped."""
    with world.session() as mallory:
        mallory.allocate(SHARE)
        mallory.send("GrantReturn", struct.pack("<IQ", 0, SHARE))
        code = mallory.synchronize()
        again = mallory.grant(SHARE)
        return Outcome(again.code == 0, _code(code))


# ---- host memory, processes, time


def images_beyond_the_budget(world: Sessions) -> Outcome:
    """The worker's memory in the machine is everybody's."""
    image = b"// " + b"x" * (2 * IMAGES) + b"\n" + _module(4)
    with world.session() as mallory:
        assert mallory.grant(8 * IMAGES).code == 0
        reply = mallory.load(image, 8 * IMAGES)
        return Outcome(reply.code == 0, "NEED_IMAGE" if reply.code == NEED_IMAGE else _code(reply.code))


def commands_that_wait(world: Sessions) -> Outcome:
    """Behind a gate that mallory never opens."""
    with world.session() as mallory:
        mallory.send("Gate", struct.pack("<Q", 1), LEGACY)
        begun = mallory.seq
        try:
            for _ in range(110):
                frames = [mallory.frame("StreamFence", struct.pack("<Q", 1), LEGACY) for _ in range(10_000)]
                mallory.connection.sendall(b"".join(frames))
            reply = mallory.ask("MemoryQuery", struct.pack("<I", 0))
        except EndedError as error:
            return Outcome(False, f"CUDA error {error.code}")
        except ConnectionError:
            return Outcome(False, "closed")
        return Outcome(reply.code == 0 and mallory.seq - begun > 1 << 20, "OK")


def frame_that_lies(world: Sessions) -> Outcome:
    """A header that announces 4 GiB. Alice's session answers meanwhile, and after."""
    with world.session() as alice, world.session() as mallory:
        mallory.connection.sendall(HEADER.pack((1 << 32) - 1, CODES["ImageChunk"], mallory.seq + 1, 0, 0))
        ended = closes(mallory.connection, 20)
        assert alice.synchronize() == 0
        return Outcome(not ended, "closed" if ended else "waits")


def contexts_without_end(world: Sessions) -> Outcome:
    """Each has streams and page-locked memory, as far as mallory gets any. Alice starts while they exist."""
    with world.lease() as hers, world.session() as mallory:
        with contextlib.suppress(EndedError):
            for number in range(64):
                mallory.send("ContextCreate", struct.pack("<QII?Q", 100 + number, 0, 0, False, 10_000 + number))
                mallory.synchronize()
        with Raw(hers) as alice:
            code = alice.synchronize()
        return Outcome(code != 0, _code(code))


def after_the_lease(world: Sessions) -> Outcome:
    """Mallory's share has ended and may be alice's: does the session go on?"""
    with world.lease() as tenant:
        mallory = Raw(tenant)
        mallory.allocate(2 * MIB)
    try:
        # The connection of a worker that lives on answers as before.
        return Outcome(mallory.write(mallory.arena, b"still here") == 0, "OK")
    except (EndedError, ConnectionError):
        return Outcome(False, "ended")
    finally:
        mallory.close()
        for worker in world.workers():
            os.kill(worker, 9)


# ---- a worker that a tenant has taken over


def _order(mallory: Raw, order: str) -> str:
    reply = mallory.ask(TAKEN_OVER, order.encode())
    return reply.tail[4:].decode(errors="replace")


def _refused(said: str) -> str:
    return "refused" if said.startswith("refused:") else "done"


def read_the_token_file(world: Sessions) -> Outcome:
    with world.session() as mallory:
        said = _order(mallory, f"read {world.tokens}")
    return Outcome(TOKEN in said, _refused(said))


def read_another_worker(world: Sessions) -> Outcome:
    with world.victim() as (_, worker), world.session() as mallory:
        canary = Path(f"/proc/{worker}/environ").read_text()
        said = _order(mallory, f"read /proc/{worker}/environ")
    return Outcome(said == canary, _refused(said))


def kill_another_worker(world: Sessions) -> Outcome:
    with world.victim() as (alice, worker), world.session() as mallory:
        said = _order(mallory, f"kill {worker}")
        with contextlib.suppress(EndedError):
            return Outcome(alice.synchronize() != 0, _refused(said))
        return Outcome(True, _refused(said))


def limit_another_worker(world: Sessions) -> Outcome:
    """It may open no file any more, so that alice gets nothing new."""
    with world.victim() as (_, worker), world.session() as mallory:
        said = _order(mallory, f"limit {worker}")
        limits = Path(f"/proc/{worker}/limits").read_text()
    return Outcome(re.search(r"Max open files +0 ", limits) is not None, _refused(said))


def socket_of_the_machine(world: Sessions) -> Outcome:
    """A service of this machine that listens on a Unix socket in a folder of its own."""
    with (
        tempfile.TemporaryDirectory() as folder,
        socket.socket(socket.AF_UNIX) as service,
        world.session() as mallory,
    ):
        service.bind(f"{folder}/service")
        service.listen()
        said = _order(mallory, f"connect-unix {folder}/service")
    return Outcome(said == "done", _refused(said))


def connect_to_the_appliance(world: Sessions) -> Outcome:
    with world.session() as mallory:
        said = _order(mallory, f"connect {world.appliance.endpoint}")
    return Outcome(said == "done", _refused(said))


def run_a_program(world: Sessions) -> Outcome:
    with world.session() as mallory:
        said = _order(mallory, "run /bin/true")
    return Outcome(said == "done", _refused(said))
