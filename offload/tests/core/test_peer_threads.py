"""Two peers' threads: callbacks on the caller's, one there for each here, order, interrupts, forks."""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from offload_local import echo, peer_pair
from support.system import until

from remotegpu_offload.wire import DEFERRED, Deferred, LostError, Message, Peer, RemoteFailure, Request, Service
from remotegpu_offload.wire.frames import Frame, Kind, encode


def test_inline_answers_larger_than_the_sockets_do_not_block_the_receiving_threads() -> None:
    with peer_pair(start=False) as (client, acceptor):
        for peer in (client, acceptor):
            peer.serve(Service.CALL, echo, inline=True)
            peer.start()
        data = os.urandom(8 << 20)
        with ThreadPoolExecutor(8) as pool:
            answers = pool.map(lambda peer: peer.request(Service.CALL, {}, [data]).buffers[0], [client, acceptor] * 8)
            assert all(bytes(answer) == data for answer in answers)


def test_callbacks_nest_on_the_callers_own_thread(pair: tuple[Peer, Peer]) -> None:
    client, acceptor = pair
    threads: dict[str, set[int]] = {"client": set(), "acceptor": set()}
    lock = threading.RLock()

    def down(peer: Peer, side: str) -> Callable[[Request], Message]:
        def handler(request: Request) -> Message:
            threads[side].add(threading.get_ident())
            depth = request.header["depth"]
            if side == "client":
                with lock:  # held by the caller, so another thread would deadlock
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


def test_each_client_thread_has_its_own_thread_in_the_acceptor(pair: tuple[Peer, Peer]) -> None:
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
        with pytest.raises(RemoteFailure) as refused:
            other.request(Service.CALL)
        assert refused.value.details["type"] == "TooManyThreads"
        release.set()
        until(lambda: not any(each.executor for each in list(peer.threads._logical.values())), 60, "the threads end")
    finally:
        release.set()
        other.close()
        peer.close()
        until(lambda: not any("of the stranger" in each.name for each in threading.enumerate()), 60, "its threads end")


def test_a_request_on_the_receiving_thread_is_refused_instead_of_waiting_for_ever(pair: tuple[Peer, Peer]) -> None:
    client, acceptor = pair
    acceptor.serve(Service.CALL, lambda _: acceptor.request(Service.CALL), inline=True)
    with pytest.raises(RemoteFailure) as refused:
        client.request(Service.CALL)
    assert refused.value.details["type"] == "OffloadError"


def interrupt_main() -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def test_ctrl_c_asks_the_other_side_to_stop_and_its_thread_is_usable_after(pair: tuple[Peer, Peer]) -> None:
    client, acceptor = pair
    stopped = threading.Event()

    def session(request: Request) -> None:
        assert request.header["op"] == "cancel"
        acceptor.threads.interrupt(request.header["thread"])

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
    with client.activity.lock:
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
