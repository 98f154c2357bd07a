"""A client that does with its stripes what it likes: bytes come late, in another order, cut at any place, with
headers that say anything. What a stripe does not carry as it should goes by the session's own connection."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator

import pytest
from attacker.beside import Stripe
from attacker.raw import CODES, CONTEXT, MIB, STREAM_COPY, EndedError, Raw, closes
from support.stand_in import StandIn
from support.system import DIST

from remotegpu.api.quantities import Ask

SHARE = Ask(memory_bytes=24 * MIB)
PIECE = 512 << 10
MOST = 8


@pytest.fixture(scope="module")
def here() -> Iterator[StandIn]:
    with StandIn(DIST) as it:
        yield it


@pytest.fixture
def raw(here: StandIn) -> Iterator[Raw]:
    with Raw(here.lease(SHARE)) as session:
        yield session


def to_device(session: Raw, address: int, length: int, stripe: int) -> int:
    place = struct.pack("<4Q", CONTEXT, address, length, stripe)
    return session.send("CopyToDeviceStriped", place, STREAM_COPY)


def to_host(session: Raw, address: int, length: int, stripe: int) -> int:
    return session.send("CopyToHostStriped", struct.pack("<4Q", CONTEXT, address, length, stripe), STREAM_COPY)


def landed(session: Raw, command: int) -> None:
    session.send("Landed", struct.pack("<Q", command))


def supply(session: Raw, data: dict[int, bytes], want: set[int]) -> None:
    """Answers the worker's questions until each command has its reply, or was asked for all of its bytes."""
    while want:
        code, of, payload = session._receive()
        if code == CODES["NeedBytes"] and of in want:
            offset, length = struct.unpack("<QQ", payload)
            session.send("SupplyBytes", struct.pack("<QQ", of, offset) + data[of][offset : offset + length])
            want.discard(of)
        if code == CODES["Reply"] and of in want:
            assert struct.unpack_from("<I", payload)[0] == 0
            want.discard(of)


def write(session: Raw, address: int, data: bytes) -> None:
    for at in range(0, len(data), PIECE):
        assert session.write(address + at, data[at : at + PIECE]) == 0


def read(session: Raw, address: int, size: int) -> bytes:
    return session.read(address, size).data


def test_pieces_come_late_and_in_another_order(raw: Raw) -> None:
    stripes = [Stripe(raw, number) for number in (1, 2, 7)]
    assert all(stripe.accepted for stripe in stripes)
    there, data = raw.allocate(16 * MIB), os.urandom(30 * PIECE)
    pieces: dict[int, bytes] = {}
    on: dict[int, list[int]] = {stripe.number: [] for stripe in stripes}
    for at in range(30):
        stripe, piece = stripes[at % 3], data[at * PIECE : (at + 1) * PIECE]
        command = to_device(raw, there + at * PIECE, PIECE, stripe.number)
        pieces[command] = piece
        on[stripe.number].append(command)
    for stripe in reversed(stripes):
        for command in reversed(on[stripe.number]):
            stripe.send(command, pieces[command])
    supply(raw, pieces, set(pieces))
    assert raw.synchronize() == 0
    assert read(raw, there, len(data)) == data


def test_bytes_may_come_before_their_command(raw: Raw) -> None:
    stripe, there, data = Stripe(raw, 1), raw.allocate(2 * MIB), os.urandom(1000)
    stripe.send(raw.seq + 1, data)
    command = to_device(raw, there, len(data), 1)
    supply(raw, {command: data}, {command})
    assert read(raw, there, len(data)) == data


@pytest.mark.parametrize("sent", [0, 1, 15, 16, 17, 16 + PIECE - 1, 16 + PIECE, 2 * (16 + PIECE) - 1])
def test_a_stripe_is_cut_at_any_place_to_the_device(raw: Raw, sent: int) -> None:
    stripe, there = Stripe(raw, 1), raw.allocate(8 * MIB)
    data = os.urandom(6 * PIECE)
    pieces = {to_device(raw, there + at, PIECE, 1): data[at : at + PIECE] for at in range(0, len(data), PIECE)}
    stream = b"".join(struct.pack("<QQ", command, PIECE) + piece for command, piece in pieces.items())
    stripe.socket.sendall(stream[:sent])
    stripe.socket.close()
    supply(raw, pieces, set(pieces))
    assert raw.synchronize() == 0
    assert read(raw, there, len(data)) == data


@pytest.mark.parametrize("lie", ["another length", "longer than all", "no command", "twice", "of another stripe"])
def test_a_stripe_that_lies_ends_alone(raw: Raw, lie: str) -> None:
    stripe, other, there = Stripe(raw, 1), Stripe(raw, 2), raw.allocate(8 * MIB)
    data = os.urandom(2 * PIECE)
    first = to_device(raw, there, PIECE, 1)
    second = to_device(raw, there + PIECE, PIECE, 2)
    match lie:
        case "another length":
            stripe.send(first, data[: PIECE - 1])
        case "longer than all":
            stripe.send(first, b"", (1 << 64) - 1)
        case "no command":
            stripe.send(first - 1, data[:PIECE])
        case "twice":
            stripe.send(first, data[:PIECE])
            stripe.send(first, data[:PIECE])
        case "of another stripe":
            third = to_device(raw, there, PIECE, 1)
            stripe.send(second, data[:PIECE])
    other.send(second, data[PIECE:])
    pieces = {first: data[:PIECE], second: data[PIECE:]}
    if lie == "of another stripe":
        pieces[third] = data[:PIECE]
    supply(raw, pieces, set(pieces))
    assert raw.synchronize() == 0
    assert read(raw, there, len(data)) == data
    assert closes(stripe.socket, 20)
    assert not closes(other.socket, 0.1)


def test_pieces_go_to_the_host_in_any_order(raw: Raw) -> None:
    stripes = {number: Stripe(raw, number) for number in (1, 2)}
    there, data = raw.allocate(8 * MIB), os.urandom(8 * PIECE)
    write(raw, there, data)
    asked = {to_host(raw, there + at * PIECE, PIECE, 1 + at % 2): at for at in range(8)}
    got: dict[int, bytes] = {}
    for number in (2, 1):
        for _ in range(4):
            command, piece = stripes[number].receive()
            assert asked[command] % 2 == number - 1
            got[asked[command]] = piece
    for command in sorted(asked, reverse=True):
        landed(raw, command)
        # Nothing comes twice.
        landed(raw, command)
        reply = raw.answer(command)
        assert (reply.code, reply.data) == (0, b"")
    assert b"".join(got[at] for at in range(8)) == data


@pytest.mark.parametrize("received", [0, 1, 16, 17, 16 + PIECE, 2 * (16 + PIECE) - 1])
def test_a_stripe_is_cut_at_any_place_to_the_host(raw: Raw, received: int) -> None:
    stripe, there = Stripe(raw, 1), raw.allocate(8 * MIB)
    before, after = os.urandom(4 * PIECE), os.urandom(4 * PIECE)
    write(raw, there, before)
    asked = [to_host(raw, there + at * PIECE, PIECE, 1) for at in range(4)]
    # They were copied from the device before it was written again.
    raw.send("CopyToDevice", struct.pack("<QQ5QQ", CONTEXT, there, PIECE, 1, 1, PIECE, PIECE, 0) + after[:PIECE], 2)
    stripe._exactly(received)
    stripe.socket.close()
    assert b"".join(raw.answer(command).data for command in asked) == before
    assert raw.synchronize() == 0


def test_a_command_that_cannot_be_done_is_answered_and_ends_its_stripe(raw: Raw) -> None:
    stripe, there = Stripe(raw, 1), raw.allocate(2 * MIB)
    data = os.urandom(PIECE)
    refused = to_device(raw, 4096, PIECE, 1)
    assert raw.answer(refused).code == 1
    good = to_device(raw, there, PIECE, 1)
    stripe.send(refused, data)
    supply(raw, {good: data}, {good})
    assert raw.synchronize() == 1, "told late, once"
    assert raw.synchronize() == 0
    assert read(raw, there, PIECE) == data


@pytest.mark.parametrize("length", [0, PIECE + 1, 1 << 40, (1 << 64) - 1])
def test_lengths_are_checked(raw: Raw, length: int) -> None:
    assert Stripe(raw, 1).accepted
    there = raw.allocate(2 * MIB)
    for stripe in (1, 5):
        assert raw.answer(to_device(raw, there, length, stripe)).code == 1
        assert raw.answer(to_host(raw, there, length, stripe)).code == 1
    raw.synchronize()
    assert raw.synchronize() == 0


def test_commands_of_stripes_that_are_not_there_go_by_the_wire(raw: Raw) -> None:
    there, data = raw.allocate(2 * MIB), os.urandom(PIECE)
    command = to_device(raw, there, PIECE, 99)
    supply(raw, {command: data}, {command})
    reply = raw.answer(to_host(raw, there, PIECE, 99))
    assert (reply.code, reply.data) == (0, data)
    landed(raw, command)
    landed(raw, 1 << 63)
    assert raw.synchronize() == 0


def test_a_silent_stripe_stops_its_stream_alone(here: StandIn, raw: Raw) -> None:
    silent, there = Stripe(raw, 1), raw.allocate(4 * MIB)
    data = os.urandom(PIECE)
    raw.send("StreamCreate", struct.pack("<QQIi", 9, CONTEXT, 1, 0))
    waits = to_device(raw, there, PIECE, 1)
    silent.socket.sendall(struct.pack("<QQ", waits, PIECE) + data[:100])
    place = struct.pack("<QQ", CONTEXT, there + 2 * MIB) + struct.pack("<5Q", 8, 1, 1, 8, 8) + struct.pack("<Q", 0)
    raw.send("CopyToDevice", place + b"12345678", 9)
    assert raw.ask("StreamSynchronize", struct.pack("<Q", (1 << 64) - 1), 9).code == 0
    silent.socket.sendall(data[100:])
    supply(raw, {waits: data}, {waits})
    assert read(raw, there, PIECE) == data


def test_numbers_rise_and_stripes_are_few(raw: Raw) -> None:
    stripes = [Stripe(raw, 10 + number) for number in range(MOST + 1)]
    assert [stripe.accepted for stripe in stripes] == [True] * MOST + [False]
    stripes[0].socket.close()
    assert not Stripe(raw, 10).accepted
    assert not Stripe(raw, 5).accepted
    # The worker has seen the end of the first once a later one is let in.
    number = 100
    while not Stripe(raw, number).accepted:
        number += 1
    assert raw.synchronize() == 0


def test_only_its_client_opens_stripes_of_a_session(here: StandIn, raw: Raw) -> None:
    with Raw(here.lease(SHARE)) as other:
        assert not Stripe(raw, 1, ticket=other.reply.ticket).accepted
    assert Stripe(raw, 1).accepted, "and nothing was used up"


def test_a_session_that_ends_with_stripes_in_use_leaves_nothing(here: StandIn) -> None:
    with Raw(here.lease(SHARE)) as raw:
        stripe, there = Stripe(raw, 1), raw.allocate(8 * MIB)
        for at in range(8):
            to_device(raw, there + at * PIECE, PIECE, 1)
            to_host(raw, there + at * PIECE, PIECE, 1)
        stripe.send(raw.seq - 15, bytes(1000), PIECE)
        with contextlib.suppress(EndedError):
            raw.send("Close", b"")
            raw._receive()
        assert closes(stripe.socket, 20)
    with Raw(here.lease(SHARE)) as beside:
        assert beside.synchronize() == 0
