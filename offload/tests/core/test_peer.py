"""Two peers: requests and their answers, failures, garbage, lost connections."""

import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from offload_local import echo
from support.system import until

from remotegpu_offload.wire import (
    DEFERRED,
    Deferred,
    FrameError,
    LostError,
    Message,
    Peer,
    RemoteFailure,
    Request,
    Service,
)
from remotegpu_offload.wire.frames import Frame, Kind, encode


def test_a_request_is_answered_with_header_and_buffers(pair: tuple[Peer, Peer]) -> None:
    client, acceptor = pair
    acceptor.serve(Service.CALL, echo)
    answer = client.request(Service.CALL, {"a": [1, "ä", None]}, [b"one", bytearray(b""), memoryview(b"three")])
    assert answer.header == {"got": {"a": [1, "ä", None]}}
    assert [bytes(b) for b in answer.buffers] == [b"one", b"", b"three"]
    assert client.counters.round_trips == client.counters.by_service["CALL"] == acceptor.counters.served["CALL"] == 1
    assert client.counters.bytes_out == acceptor.counters.bytes_in > 0
    counters = client.counters, acceptor.counters
    until(lambda: counters[0].bytes_in == counters[1].bytes_out > 0, 60, "what was sent is counted")


def test_large_buffers_arrive_whole_in_both_directions_at_once(pair: tuple[Peer, Peer]) -> None:
    client, acceptor = pair
    acceptor.serve(Service.CALL, echo)
    client.serve(Service.CALL, echo)
    data = [os.urandom(24 << 20), os.urandom(3), os.urandom(5 << 20)]

    def ask(peer: Peer) -> list[bytes]:
        return [bytes(buffer) for buffer in peer.request(Service.CALL, {}, data).buffers]

    with ThreadPoolExecutor(6) as pool:
        assert all(answer == data for answer in pool.map(ask, [client, acceptor] * 3))


def test_what_is_received_is_memory_of_its_own(pair: tuple[Peer, Peer]) -> None:
    client, acceptor = pair
    kept: list[memoryview] = []

    def keep(request: Request) -> None:
        for buffer in request.buffers:
            assert isinstance(buffer, memoryview)
            kept.append(buffer)

    acceptor.serve(Service.CALL, keep)
    client.request(Service.CALL, {}, [b"a" * 100, b"b" * (1 << 20)])
    client.request(Service.CALL, {}, [b"c" * 100])
    kept[0][:] = b"x" * 100
    assert [bytes(buffer[:2]) for buffer in kept] == [b"xx", b"bb", b"cc"]


def test_failures_name_themselves(pair: tuple[Peer, Peer]) -> None:
    client, acceptor = pair

    def handler(request: Request) -> Message:
        if request.header["how"] == "fail":
            request.fail("the shelf is empty; fill it", shelf=3)
        elif request.header["how"] == "raise":
            raise KeyError("shelf")
        elif request.header["how"] == "exit":
            raise SystemExit(3)
        return Message({"not": object()})

    acceptor.serve(Service.CALL, handler)
    with pytest.raises(RemoteFailure) as failure:
        client.request(Service.CALL, {"how": "fail"})
    assert (failure.value.error, failure.value.details) == ("the shelf is empty; fill it", {"shelf": 3})
    with pytest.raises(RemoteFailure) as failure:
        client.request(Service.CALL, {"how": "raise"})
    assert failure.value.details["type"] == "KeyError"
    assert "test_peer" in failure.value.details["traceback"]
    with pytest.raises(RemoteFailure) as failure:
        client.request(Service.CALL, {"how": "exit"})
    assert failure.value.details["type"] == "SystemExit"
    with pytest.raises(RemoteFailure) as failure:
        client.request(Service.CALL, {"how": "reply"})
    assert failure.value.details["type"] == "FrameError"
    with pytest.raises(RemoteFailure) as failure:
        client.request(Service.FILES)
    assert failure.value.details["type"] == "NotServed"
    acceptor.serve(Service.CALL, echo)
    assert client.request(Service.CALL, {"a": 1}).header == {"got": {"a": 1}}


def test_what_was_sent_wrongly_leaves_the_connection_usable(pair: tuple[Peer, Peer]) -> None:
    client, acceptor = pair
    acceptor.serve(Service.CALL, echo)
    with pytest.raises(FrameError):
        client.request(Service.CALL, {"a": {1, 2}})
    assert client.request(Service.CALL, {}).header == {"got": {}}


def test_a_request_that_is_given_up_does_not_disturb_the_next(pair: tuple[Peer, Peer]) -> None:
    client, acceptor = pair
    go_on = threading.Event()

    def handler(request: Request) -> Message:
        if request.header["n"] == 0:
            go_on.wait(60)
        return Message({"n": request.header["n"]})

    acceptor.serve(Service.CALL, handler)
    with pytest.raises(TimeoutError):
        client.request(Service.CALL, {"n": 0}, timeout=0.05)
    go_on.set()
    for number in range(1, 5):
        assert client.request(Service.CALL, {"n": number}).header == {"n": number}


def test_a_lost_peer_fails_all_who_wait_and_all_later_ones(pair: tuple[Peer, Peer]) -> None:
    client, acceptor = pair
    arrived = threading.Semaphore(0)
    reasons: list[str] = []
    client.on_lost.append(reasons.append)

    def never(request: Request) -> Deferred:
        arrived.release()
        return DEFERRED

    acceptor.serve(Service.CALL, never)
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(client.request, Service.CALL) for _ in range(4)]
        for _ in range(4):
            assert arrived.acquire(timeout=60)
        acceptor.close()
        for future in waiting:
            with pytest.raises(LostError, match=r"^the acceptor of this test\b.*`on_disconnect: "):
                future.result(60)
    with pytest.raises(LostError):
        client.request(Service.CALL)
    with pytest.raises(LostError):
        client.notify(Service.CALL)
    assert client.closed.is_set()
    until(lambda: len(reasons) == 1, 60, "the loss is told once")


def test_closing_is_not_reported_as_a_loss(pair: tuple[Peer, Peer]) -> None:
    client, _acceptor = pair
    reasons: list[str] = []
    client.on_lost.append(reasons.append)
    client.close()
    client.close()
    with pytest.raises(LostError):
        client.request(Service.CALL)
    assert not reasons


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: nowhere\r\n\r\n" * 4,
        b"\xff" * 64,
        b"".join(encode(Frame(Kind.REQUEST, Service.CALL, 1, 0, {}))),
        b"".join(encode(Frame(Kind.NOTICE, Service.CALL, 1, 9, {}))),
    ],
)
def test_garbage_ends_the_connection_with_a_sentence(garbage: bytes) -> None:
    ours, theirs = socket.socketpair()
    peer = Peer(ours, name="the stranger")
    reasons: list[str] = []
    peer.on_lost.append(reasons.append)
    peer.start()
    with theirs:
        theirs.sendall(garbage)
        assert peer.closed.wait(60)
        peer.close()
    assert "the stranger is gone (it does not speak this protocol" in reasons[0]


def test_answers_that_nobody_asked_for_are_ignored() -> None:
    ours, theirs = socket.socketpair()
    peer = Peer(ours, name="the stranger")
    peer.serve(Service.CALL, echo)
    peer.start()
    with theirs:
        for kind in (Kind.REPLY, Kind.FAILURE):
            theirs.sendall(b"".join(encode(Frame(kind, Service.CALL, 1, 77, {}))))
        theirs.sendall(b"".join(encode(Frame(Kind.REQUEST, Service.CALL, 9, 1, {"a": 1}))))
        assert theirs.recv(4096)
        peer.close()
