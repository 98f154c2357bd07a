"""Peers of an HTTP port: none keeps another out, whatever it sends or does not send."""

from __future__ import annotations

import contextlib
import socket
import threading
import urllib.request
from collections.abc import Iterator

import pytest
from support.system import until

from remotegpu.appliance.http import visitors


class Hello(visitors.Handler):
    def do_GET(self) -> None:  # noqa: N802
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[visitors.Server]:
    with visitors.Server(("127.0.0.1", 0), Hello) as it:
        thread = threading.Thread(target=it.serve_forever, args=(0.05,))
        thread.start()
        yield it
        it.shutdown()
        thread.join()


def from_peer(server: visitors.Server, last: int, sends: bytes = b"GET") -> socket.socket:
    connection = socket.create_connection(server.server_address[:2], 20, source_address=(f"127.0.0.{last}", 0))  # type: ignore[arg-type]
    connection.sendall(sends)
    return connection


def ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def asks(server: visitors.Server) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.server_address[1]}/", timeout=20) as answer:
        content: bytes = answer.read()
    return content


def test_who_sits_still_keeps_nobody_out(server: visitors.Server) -> None:
    """Four peers fill all places with unfinished requests, and more are tried; then one of them asks again."""
    with contextlib.ExitStack() as stack:
        sitting = [stack.enter_context(from_peer(server, 2 + number % 4)) for number in range(300)]
        for _ in range(3):
            assert asks(server) == b"hello"
        connection = stack.enter_context(from_peer(server, 2, b"GET / HTTP/1.0\r\n\r\n"))
        assert connection.recv(100).startswith(b"HTTP/1.0 200")
        assert ended(sitting[0]), "the oldest left"


def test_a_head_has_so_much_time(server: visitors.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visitors, "_HEAD_SECONDS", 0.5)
    with from_peer(server, 2) as slow:
        slow.settimeout(0.05)

        def drips() -> bool:
            try:
                slow.sendall(b"x")
                return slow.recv(1) == b""
            except TimeoutError:
                return False
            except ConnectionError:
                return True

        until(drips, 20, "it has to leave")


def test_a_head_has_so_many_bytes(server: visitors.Server) -> None:
    line = b"a: " + b"x" * 1000 + b"\r\n"
    with from_peer(server, 2, b"GET / HTTP/1.0\r\n" + 10 * line + b"\r\n") as short:
        assert short.recv(100).startswith(b"HTTP/1.0 200")
    with from_peer(server, 2, b"GET / HTTP/1.0\r\n") as long:
        with contextlib.suppress(ConnectionError):
            for _ in range(1000):
                long.sendall(line)
        assert ended(long)


def test_answers_that_nobody_reads_are_so_many(server: visitors.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, reads = threading.Semaphore(0), threading.Event()

    def waits(_: Hello) -> None:
        begun.release()
        reads.wait(20)

    monkeypatch.setattr(visitors, "_MOST_ANSWERS", 3)
    monkeypatch.setattr(Hello, "do_GET", waits)
    with contextlib.ExitStack() as stack:
        for number in range(3):
            stack.enter_context(from_peer(server, 2 + number, b"GET / HTTP/1.0\r\n\r\n"))
            assert begun.acquire(timeout=20)
        assert ended(stack.enter_context(from_peer(server, 9, b"GET / HTTP/1.0\r\n\r\n")))
        reads.set()
