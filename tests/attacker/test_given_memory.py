"""A client that gives its worker memory of all kinds: what could hurt is refused, and it changes only its own bytes."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import ipaddress
import os
import socket
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attacker.beside import ADDRESS, SIZE, Giver, memfd
from attacker.raw import CODES, CONTEXT, MIB, STREAM_COPY, EndedError, Raw, closes, extent
from cryptography import x509
from support.certificates import certificate
from support.stand_in import StandIn
from support.system import DIST, until

from remotegpu.api.quantities import Ask
from remotegpu.rpc.client import Access

SHARE = Ask(memory_bytes=16 * MIB)
PUNCH_HOLE = 0x01 | 0x02  # FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE


@pytest.fixture(scope="module")
def here() -> Iterator[StandIn]:
    with StandIn(DIST, "--grace", "20s") as it:
        yield it


@pytest.fixture
def raw(here: StandIn) -> Iterator[Raw]:
    with Raw(here.lease(SHARE)) as session:
        yield session


def copy_in(session: Raw, to: int, from_: int, size: int) -> int:
    place = struct.pack("<QQ", CONTEXT, to) + extent(size) + struct.pack("<Q", from_)
    return session.send("CopyToDeviceShared", place, STREAM_COPY)


def copy_out(session: Raw, to: int, from_: int, size: int) -> int:
    place = struct.pack("<QQ", CONTEXT, from_) + extent(size) + struct.pack("<3Q", 0, size, to)
    return session.answer(session.send("CopyToHostShared", place, STREAM_COPY)).code


def test_bytes_are_read_and_written_where_they_lie(raw: Raw) -> None:
    file, there = memfd(), raw.allocate(SIZE)
    data = os.urandom(SIZE)
    os.pwrite(file, data, 0)
    assert Giver(raw).give(file) == b"K"
    assert raw.answer(copy_in(raw, there, ADDRESS + 4096, SIZE - 4096)).code == 0
    assert raw.read(there, SIZE - 4096).data == data[4096:]
    assert copy_out(raw, ADDRESS, there, 1 * MIB) == 0
    assert os.pread(file, SIZE, 0) == data[4096 : 4096 + MIB] + data[MIB:]


def plain(folder: Path) -> int:
    file = os.open(folder / "file", os.O_RDWR | os.O_CREAT)
    os.ftruncate(file, SIZE)
    return file


#: Memory that may become shorter, that is not what the client says, or whose use may be a bus error.
BAD: dict[str, Callable[[Path], int]] = {
    "unsealed": lambda _: memfd(seals=0),
    "may shrink": lambda _: memfd(seals=fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL),
    "may be unsealed": lambda _: memfd(seals=fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW),
    "shorter": lambda _: memfd(SIZE - 4096),
    "longer": lambda _: memfd(SIZE + 4096),
    "a file": plain,
    "no file": lambda _: os.open("/dev/zero", os.O_RDWR),
    "huge pages": lambda _: memfd(flags=os.MFD_HUGETLB),
}


@pytest.mark.parametrize("kind", BAD)
def test_what_could_hurt_is_refused(raw: Raw, kind: str, tmp_path: Path) -> None:
    giver = Giver(raw)
    assert giver.give(BAD[kind](tmp_path)) == b"N"
    assert giver.give(memfd()) == b"K", "and the next is taken"


@pytest.mark.parametrize(
    ("address", "size", "context"),
    [
        (ADDRESS + SIZE - 4096, SIZE, CONTEXT),
        (ADDRESS - SIZE + 4096, SIZE, CONTEXT),
        (ADDRESS, SIZE, CONTEXT),
        (ADDRESS + SIZE + 1, SIZE, CONTEXT),
        (2**64 - 4096, SIZE, CONTEXT),
        (ADDRESS + SIZE, 0, CONTEXT),
        (ADDRESS + SIZE, 5, CONTEXT),
    ],
)
def test_places_are_checked(raw: Raw, address: int, size: int, context: int) -> None:
    giver = Giver(raw)
    assert giver.give(memfd()) == b"K"
    assert giver.give(memfd(size), address, size, context) == b"N"
    assert giver.give(memfd(), ADDRESS + SIZE) == b"K"


def test_what_is_no_gift_closes_the_connection_and_not_the_session(raw: Raw) -> None:
    for sent in (b"x", struct.pack("<3Q", CONTEXT, ADDRESS, SIZE), os.urandom(5000)):
        giver = Giver(raw)
        giver.socket.sendall(sent)
        assert closes(giver.socket, 20)
    assert Giver(raw).give(memfd()) == b"K"
    assert raw.synchronize() == 0


def test_only_its_client_gives_to_a_session(here: StandIn, raw: Raw) -> None:
    with Raw(here.lease(SHARE)) as other:
        giver = Giver(raw, other.reply.ticket)
        with contextlib.suppress(ConnectionError):
            assert giver.give(memfd()) == b""


@pytest.mark.parametrize("beyond", [ADDRESS + SIZE - 4096, ADDRESS - 4096, 0, 2**64 - 1])
def test_bytes_beside_it_are_asked_for(raw: Raw, beyond: int) -> None:
    there = raw.allocate(SIZE)
    assert Giver(raw).give(memfd()) == b"K"
    seq = copy_in(raw, there, beyond, 8192)
    code, of, payload = raw._receive()
    assert (code, of, struct.unpack("<QQ", payload)) == (CODES["NeedBytes"], seq, (0, 8192))


def test_memory_that_changes_under_copies_hurts_nobody(here: StandIn, raw: Raw) -> None:
    """Holes are punched and bytes written while both directions are copied."""
    file, there = memfd(), raw.allocate(SIZE)
    libc, done = ctypes.CDLL(None, use_errno=True), threading.Event()
    libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)

    def disturb() -> None:
        while not done.is_set():
            assert libc.fallocate(file, PUNCH_HOLE, 0, SIZE) == 0
            os.pwrite(file, bytes(SIZE // 2), SIZE // 4)

    assert Giver(raw).give(file) == b"K"
    with Raw(here.lease(SHARE)) as beside:
        data, place = os.urandom(MIB // 2), beside.allocate(2 * MIB)
        thread = threading.Thread(target=disturb)
        thread.start()
        try:
            for _ in range(50):
                assert raw.answer(copy_in(raw, there, ADDRESS, SIZE)).code == 0
                assert copy_out(raw, ADDRESS, there, SIZE) == 0
                assert beside.write(place, data) == 0
                assert beside.read(place, MIB // 2).data == data
        finally:
            done.set()
            thread.join()
    assert raw.synchronize() == 0


def test_memory_is_given_back(raw: Raw) -> None:
    there, giver = raw.allocate(SIZE), Giver(raw)
    for _ in range(3):
        assert giver.give(memfd()) == b"K"
        assert raw.answer(copy_in(raw, there, ADDRESS, SIZE)).code == 0
        giver.take_back()


def test_with_tls_the_socket_takes_memory_alone_and_is_there_once_its_folder_is(tmp_path: Path) -> None:
    certificate(tmp_path, "server", x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    pem, key = tmp_path / "server.pem", tmp_path / "server.key"
    with tempfile.TemporaryDirectory() as short:
        folder = Path(short) / "later"
        options = ("--cert", str(pem), "--key", str(key), "--local-sockets", str(folder))
        with StandIn(DIST, *options, access=Access(ca=pem)) as here, Raw(here.lease(SHARE)) as raw:
            path = Path(raw.reply.data_socket)
            assert path.parent == folder
            assert not path.exists()
            folder.mkdir()
            until(path.is_socket, 20, "the gateway listens")
            with socket.socket(socket.AF_UNIX) as plain:
                plain.connect(str(path))
                plain.sendall(b"RGL1" + bytes.fromhex(raw.tenant.granted.lease_id) + bytes(32))
                assert closes(plain, 20)
            until(lambda: "demands TLS" in here.log, 20, "the appliance says why")
            assert Giver(raw).give(memfd()) == b"K"
        assert not list(folder.iterdir())


def test_what_a_session_shares_has_a_budget() -> None:
    """A quarter of what its lease may hold: what is beyond goes by the wire, and ends nothing."""
    with StandIn(DIST, "--host-memory-per-lease", f"{8 * SIZE}") as here, Raw(here.lease(SHARE)) as raw:
        giver = Giver(raw)
        answers = [giver.give(memfd(), ADDRESS + at * SIZE) for at in range(3)]
        assert answers == [b"K", b"K", b"N"]
        giver.take_back()
        assert giver.give(memfd(), ADDRESS) == b"K"


def test_a_session_cannot_have_more_pieces_than_a_number(raw: Raw) -> None:
    giver, file = Giver(raw), memfd(4096)
    answers = [giver.give(file, ADDRESS + at * 4096, 4096) for at in range(4097)]
    assert answers == [b"K"] * 4096 + [b"N"]
    assert raw.synchronize() == 0


def test_memory_that_is_taken_back_under_copies_hurts_its_session_alone(here: StandIn, raw: Raw) -> None:
    there, giver = raw.allocate(SIZE), Giver(raw)
    assert giver.give(memfd()) == b"K"
    for _ in range(400):
        copy_in(raw, there, ADDRESS, SIZE)
    giver.take_back()
    # What the worker had not begun it asks for; a copy that runs keeps the memory, and its session ends.
    with contextlib.suppress(EndedError):
        while raw._receive()[0] != CODES["NeedBytes"]:
            pass
    with Raw(here.lease(SHARE)) as beside:
        assert beside.synchronize() == 0
