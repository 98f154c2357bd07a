"""Two peers: requests, callbacks on the caller's thread, many threads, interrupts, lost connections."""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.offload import peer_pair

from remotegpu.offload.wire import (
    DEFERRED,
    Deferred,
    LostError,
    Message,
    OffloadError,
    Peer,
    RemoteFailure,
    Request,
    Service,
)
from remotegpu.offload.wire.frames import Frame, Kind, encode


@pytest.fixture
def pair() -> Iterator[tuple[Peer, Peer]]:
    with peer_pair() as peers:
        yield peers


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)


def echo(request: Request) -> Message:
    return Message({"got": request.header}, request.buffers)


def test_a_request_is_answered_with_header_and_buffers(pair: tuple[Peer, Peer]) -> None:
    client, acceptor = pair
    acceptor.serve(Service.CALL, echo)
    answer = client.request(Service.CALL, {"a": [1, "ä", None]}, [b"one", bytearray(b""), memoryview(b"three")])
    assert answer.header == {"got": {"a": [1, "ä", None]}}
    assert [bytes(b) for b in answer.buffers] == [b"one", b"", b"three"]
    assert client.counters.round_trips == client.counters.by_service["CALL"] == acceptor.counters.served["CALL"] == 1
    assert client.counters.bytes_out == acceptor.counters.bytes_in > 0
    until(lambda: client.counters.bytes_in == acceptor.counters.bytes_out > 0)  # counted after they are sent


def test_large_buffers_arrive_whole_in_both_directions_at_once(pair: tuple[Peer, Peer]) -> None:
    client, acceptor = pair
    acceptor.serve(Service.CALL, echo)
    client.serve(Service.CALL, echo)
    data = [os.urandom(24 << 20), os.urandom(3), os.urandom(5 << 20)]

    def ask(peer: Peer) -> list[bytes]:
        return [bytes(buffer) for buffer in peer.request(Service.CALL, {}, data).buffers]

    with ThreadPoolExecutor(6) as pool:
        assert all(answer == data for answer in pool.map(ask, [client, acceptor] * 3))


def test_inline_answers_larger_than_the_sockets_do_not_block_the_receiving_threads() -> None:
    with peer_pair(start=False) as (client, acceptor):
        for peer in (client, acceptor):
            peer.serve(Service.CALL, echo, inline=True)
            peer.start()
        data = os.urandom(8 << 20)
        with ThreadPoolExecutor(8) as pool:
            answers = pool.map(lambda peer: peer.request(Service.CALL, {}, [data]).buffers[0], [client, acceptor] * 8)
            assert all(bytes(answer) == data for answer in answers)


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


def test_callbacks_nest_on_the_callers_own_thread(pair: tuple[Peer, Peer]) -> None:
    client, acceptor = pair
    threads: dict[str, set[int]] = {"client": set(), "acceptor": set()}
    lock = threading.RLock()

    def down(peer: Peer, side: str) -> Callable[[Request], Message]:
        def handler(request: Request) -> Message:
            threads[side].add(threading.get_ident())
            depth = request.header["depth"]
            if side == "client":
                with lock:  # held by the caller, so another thread would wait for ever
                    pass
            if not depth:
                return Message({"path": [side]})
            path = peer.request(Service.CALL, {"depth": depth - 1}).header["path"]
            return Message({"path": [side, *path]})

        return handler

    client.serve(Service.CALL, down(client, "client"))
    acceptor.serve(Service.CALL, down(acceptor, "acceptor"))
    with lock:
        path = client.request(Service.CALL, {"depth": 21}, timeout=60).header["path"]
    assert path == ["acceptor", "client"] * 11
    assert threads["client"] == {threading.get_ident()}
    assert len(threads["acceptor"]) == 1


def test_each_client_thread_has_its_own_thread_over_there(pair: tuple[Peer, Peer]) -> None:
    client, acceptor = pair
    seen: dict[int, set[int]] = {}
    together = threading.Barrier(6)

    def handler(request: Request) -> Message:
        seen.setdefault(request.header["from"], set()).add(threading.get_ident())
        if request.header["number"] == 0:
            together.wait(60)  # all six are executed at once
        back = acceptor.request(Service.OBJECTS, {"from": request.header["from"]}).header["thread"]
        return Message({"number": request.header["number"], "thread": back})

    client.serve(Service.OBJECTS, lambda _: Message({"thread": threading.get_ident()}))
    acceptor.serve(Service.CALL, handler)

    def ask(which: int) -> None:
        for number in range(50):
            answer = client.request(Service.CALL, {"from": which, "number": number}).header
            assert answer == {"number": number, "thread": threading.get_ident()}

    with ThreadPoolExecutor(6) as pool:
        for future in [pool.submit(ask, which) for which in range(6)]:
            future.result()
    assert all(len(idents) == 1 for idents in seen.values())
    assert len({next(iter(idents)) for idents in seen.values()}) == 6


def test_the_programs_main_thread_is_the_acceptors_main_thread() -> None:
    with peer_pair(start=False) as (client, acceptor):
        idents: list[int] = []
        acceptor.serve(Service.CALL, lambda _: Message({"ident": threading.get_ident()}))

        def main() -> None:
            idents.append(threading.get_ident())
            acceptor.run_main()

        thread = threading.Thread(target=main)
        thread.start()
        client.start()
        assert client.request(Service.CALL).header["ident"] == thread.ident
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(client.request, Service.CALL).result().header["ident"] != thread.ident
        assert client.request(Service.CALL).header["ident"] == thread.ident
        client.close()
        thread.join(60)
        assert not thread.is_alive()
        assert idents == [thread.ident]


def test_notices_and_inline_requests_are_handled_in_the_order_of_all_threads(pair: tuple[Peer, Peer]) -> None:
    client, acceptor = pair
    seen: list[int] = []

    def note(request: Request) -> Message:
        seen.append(request.header["n"])
        return Message({"seen": len(seen)})

    acceptor.serve(Service.TORCH, note, inline=True)
    acceptor.serve(Service.CALL, lambda _: Message({"seen": len(seen)}))
    for number in range(1000):
        client.notify(Service.TORCH, {"n": number})
    assert client.request(Service.TORCH, {"n": 1000}).header == {"seen": 1001}
    client.notify(Service.TORCH, {"n": 1001})
    # Also a request that another thread executes comes after the notices before it.
    assert client.request(Service.CALL).header == {"seen": 1002}
    assert seen == list(range(1002))
    assert (client.counters.round_trips, client.counters.notices) == (2, 1001)


def test_a_deferred_answer_comes_from_any_thread(pair: tuple[Peer, Peer]) -> None:
    client, acceptor = pair

    def later(request: Request) -> Deferred:
        threading.Thread(target=lambda: request.reply({"late": True}, [b"x"])).start()
        return DEFERRED

    acceptor.serve(Service.CALL, later, inline=True)
    answer = client.request(Service.CALL)
    assert answer.header == {"late": True} and bytes(answer.buffers[0]) == b"x"


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
    with pytest.raises(RemoteFailure, match="the shelf is empty; fill it") as failure:
        client.request(Service.CALL, {"how": "fail"})
    assert failure.value.details == {"shelf": 3}
    with pytest.raises(RemoteFailure, match="shelf") as failure:
        client.request(Service.CALL, {"how": "raise"})
    assert failure.value.details["type"] == "KeyError"
    assert "test_offload_peer" in failure.value.details["traceback"]
    with pytest.raises(RemoteFailure) as failure:
        client.request(Service.CALL, {"how": "exit"})
    assert failure.value.details["type"] == "SystemExit"
    with pytest.raises(RemoteFailure, match="cannot be written as JSON"):
        client.request(Service.CALL, {"how": "reply"})
    with pytest.raises(RemoteFailure, match="FILES is not served"):
        client.request(Service.FILES)
    acceptor.serve(Service.CALL, echo)
    assert client.request(Service.CALL, {"a": 1}).header == {"got": {"a": 1}}


def test_what_was_sent_wrongly_leaves_the_connection_usable(pair: tuple[Peer, Peer]) -> None:
    client, acceptor = pair
    acceptor.serve(Service.CALL, echo)
    with pytest.raises(OffloadError, match="JSON"):
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
    with pytest.raises(TimeoutError, match=r"no answer .* within 0.05 s"):
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
            with pytest.raises(LostError, match=r"acceptor of this test is gone .*on_disconnect"):
                future.result(60)
    with pytest.raises(LostError, match="gone"):
        client.request(Service.CALL)
    with pytest.raises(LostError, match="gone"):
        client.notify(Service.CALL)
    assert client.closed.is_set()
    until(lambda: len(reasons) == 1)


def test_closing_is_no_loss(pair: tuple[Peer, Peer]) -> None:
    client, _acceptor = pair
    reasons: list[str] = []
    client.on_lost.append(reasons.append)
    client.close()
    client.close()
    with pytest.raises(LostError, match="was closed"):
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


def test_many_logical_threads_are_refused_and_others_go_on() -> None:
    ours, theirs = socket.socketpair()
    peer = Peer(ours, name="the stranger")
    release = threading.Event()

    def hold(request: Request) -> None:
        release.wait(60)

    peer.serve(Service.CALL, hold)
    other = Peer(theirs, name="us", accepting=True)
    peer.start()
    other.start()
    try:
        for thread in range(10, 10 + 1024):
            other._send(encode(Frame(Kind.REQUEST, Service.CALL, thread, 10_000 + thread, {})))
        with pytest.raises(RemoteFailure, match="more than 1024 threads"):
            other.request(Service.CALL)
        release.set()
        until(lambda: not any(logical.executor for logical in list(peer._logical.values())))
    finally:
        release.set()
        other.close()
        peer.close()
        until(lambda: not any("of the stranger" in thread.name for thread in threading.enumerate()))


def test_a_request_on_the_receiving_thread_is_refused_instead_of_waiting_for_ever(pair: tuple[Peer, Peer]) -> None:
    client, acceptor = pair
    acceptor.serve(Service.CALL, lambda _: acceptor.request(Service.CALL), inline=True)
    with pytest.raises(RemoteFailure, match="serve it not inline"):
        client.request(Service.CALL)


def interrupt_main() -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def test_ctrl_c_asks_the_other_side_to_stop_and_its_thread_is_usable_after(pair: tuple[Peer, Peer]) -> None:
    client, acceptor = pair
    stopped = threading.Event()

    def session(request: Request) -> None:
        assert request.header["op"] == "cancel"
        acceptor.interrupt(request.header["thread"])

    def work(request: Request) -> Message:
        if request.header.get("quick"):
            return Message({"quick": True})
        interrupt_main()
        try:
            while True:
                time.sleep(0.001)
        finally:
            stopped.set()

    acceptor.serve(Service.SESSION, session)
    acceptor.serve(Service.CALL, work)
    with pytest.raises(KeyboardInterrupt):
        client.request(Service.CALL)
    assert stopped.is_set()
    assert client.request(Service.CALL, {"quick": True}).header == {"quick": True}


def test_a_second_ctrl_c_gives_up(pair: tuple[Peer, Peer]) -> None:
    client, acceptor = pair
    acceptor.serve(Service.SESSION, lambda _: interrupt_main())  # deaf, and the user loses patience
    release = threading.Event()

    def work(request: Request) -> None:
        interrupt_main()
        release.wait(60)

    acceptor.serve(Service.CALL, work)
    with pytest.raises(KeyboardInterrupt):
        client.request(Service.CALL)
    release.set()
    acceptor.serve(Service.CALL, echo)
    assert client.request(Service.CALL).header == {"got": {}}


def test_ctrl_c_in_the_middle_of_sending_leaves_whole_frames(pair: tuple[Peer, Peer]) -> None:
    """The receiver is slow, so that the sender waits in the middle of a frame when the interrupt comes."""
    client, acceptor = pair
    data = os.urandom(16 << 20)
    received: list[bool] = []
    hold = threading.Event()

    def take(request: Request) -> None:
        hold.wait(60)
        received.append(bytes(request.buffers[0]) == data)

    acceptor.serve(Service.FILES, take, inline=True)
    interrupted = 0
    for _ in range(5):
        timer = threading.Timer(0.05, interrupt_main)
        timer.start()
        try:
            client.notify(Service.FILES, {}, [data])
            while timer.is_alive():
                time.sleep(0.001)
            time.sleep(0.001)
        except KeyboardInterrupt:
            interrupted += 1
        timer.join()
    hold.set()
    acceptor.serve(Service.CALL, echo)
    assert client.request(Service.CALL, {"n": 1}, timeout=60).header == {"got": {"n": 1}}
    assert interrupted
    assert received and all(received)


def test_a_forked_child_forgets_the_connection(pair: tuple[Peer, Peer]) -> None:
    client, acceptor = pair
    acceptor.serve(Service.CALL, echo)
    client.request(Service.CALL)
    with client._lock:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                client.abandon("the connection is the parent's")
                try:
                    client.notify(Service.CALL)
                except LostError:
                    code = 0
            finally:
                os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert client.request(Service.CALL, {"still": 1}).header == {"got": {"still": 1}}
