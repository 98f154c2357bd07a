"""The proxy applies exactly the faults of its methods."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from support.faultproxy import FaultProxy, Line, Way


@pytest.fixture
def echo_port() -> Iterator[int]:
    """A server that echoes all bytes, and closes a connection when its client has closed it."""
    listener = socket.create_server(("127.0.0.1", 0))

    def echo(connection: socket.socket) -> None:
        with connection, contextlib.suppress(ConnectionError):
            while data := connection.recv(1 << 16):
                connection.sendall(data)

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=echo, args=(connection,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    with listener:
        yield listener.getsockname()[1]


def connect(proxy: FaultProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=10)


def receive(connection: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length and (piece := connection.recv(length - len(data))):
        data += piece
    return data


def test_bytes_pass_unchanged_and_the_end_too(echo_port: int) -> None:
    message = bytes(range(256)) * 4096
    with FaultProxy("127.0.0.1", echo_port) as proxy, connect(proxy) as connection:
        sender = threading.Thread(target=connection.sendall, args=(message,))
        sender.start()
        assert receive(connection, len(message)) == message
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""
        sender.join()


@pytest.mark.parametrize("count", [1, 100, 65536])
def test_a_connection_is_cut_after_so_many_bytes(echo_port: int, count: int) -> None:
    with FaultProxy("127.0.0.1", echo_port) as proxy:
        proxy.cut_after(count)
        with connect(proxy) as connection:
            came = b""
            with contextlib.suppress(ConnectionError):
                for _ in range(count + 1):
                    connection.sendall(b"x")
                    piece = connection.recv(1 << 16)
                    if not piece:
                        break
                    came += piece
            # `count` includes the bytes of both directions.
            assert len(came) == count // 2
        proxy.cut_after(0)
        with connect(proxy) as connection:
            connection.sendall(bytes(count + 1))
            assert receive(connection, count + 1) == bytes(count + 1)


def test_delay_holds_bytes_back_both_ways(echo_port: int) -> None:
    with FaultProxy("127.0.0.1", echo_port, delay_ms=60) as proxy, connect(proxy) as connection:
        started = time.monotonic()
        connection.sendall(b"ping")
        assert receive(connection, 4) == b"ping"
        assert time.monotonic() - started >= 0.12


@pytest.mark.parametrize(
    "line", [Line(jitter_ms=5), Line(lost_permille=100, again_ms=20), Line(piece_bytes=7)], ids=lambda line: repr(line)
)
def test_a_bad_line_changes_no_byte_and_no_order(echo_port: int, line: Line) -> None:
    message = bytes(range(251)) * 40
    with FaultProxy("127.0.0.1", echo_port) as proxy, connect(proxy) as connection:
        proxy.behave(line)
        for at in range(0, len(message), 251):
            connection.sendall(message[at : at + 251])
        assert receive(connection, len(message)) == message


def test_a_narrow_line_takes_its_time(echo_port: int) -> None:
    message = bytes(250_000)
    with FaultProxy("127.0.0.1", echo_port) as proxy, connect(proxy) as connection:
        proxy.behave(Line(megabits=10), Way.BACK)
        started = time.monotonic()
        threading.Thread(target=connection.sendall, args=(message,)).start()
        assert receive(connection, len(message)) == message
        assert time.monotonic() - started >= 0.2


def test_pieces_arrive_apart(echo_port: int) -> None:
    with FaultProxy("127.0.0.1", echo_port) as proxy, connect(proxy) as connection:
        proxy.behave(Line(piece_bytes=1, jitter_ms=20), Way.BACK)
        connection.sendall(b"abcdefgh")
        assert 0 < len(connection.recv(8)) < 8


def test_damage_turns_one_bit_of_the_byte_that_was_named(echo_port: int) -> None:
    with FaultProxy("127.0.0.1", echo_port) as proxy, connect(proxy) as connection:
        proxy.damage(Way.OUT, after_bytes=2)
        connection.sendall(b"abcd")
        assert receive(connection, 4) == b"ab" + bytes([ord("c") ^ 0x40]) + b"d"
        connection.sendall(b"abcd")
        assert receive(connection, 4) == b"abcd"


def test_swallowed_bytes_never_arrive_and_the_connection_stays(echo_port: int) -> None:
    with FaultProxy("127.0.0.1", echo_port) as proxy, connect(proxy) as connection:
        connection.sendall(b"x")
        assert receive(connection, 1) == b"x"
        proxy.swallow(Way.BACK)
        connection.sendall(b"lost")
        connection.settimeout(0.3)
        with pytest.raises(TimeoutError):
            connection.recv(1)


def test_cut_resets_what_is_open_and_leaves_what_comes(echo_port: int) -> None:
    with FaultProxy("127.0.0.1", echo_port) as proxy:
        with connect(proxy) as connection:
            connection.sendall(b"x")
            assert receive(connection, 1) == b"x"
            proxy.cut()
            with pytest.raises(ConnectionResetError):
                connection.recv(1)
        with connect(proxy) as connection:
            connection.sendall(b"y")
            assert receive(connection, 1) == b"y"


def test_the_next_connections_damage_is_no_other_ones(echo_port: int) -> None:
    with FaultProxy("127.0.0.1", echo_port) as proxy, connect(proxy) as before:
        before.sendall(b"a")
        assert receive(before, 1) == b"a"
        proxy.damage_next(Way.BACK)
        before.sendall(b"a")
        assert receive(before, 1) == b"a"
        with connect(proxy) as after:
            after.sendall(b"a")
            assert receive(after, 1) == bytes([ord("a") ^ 0x40])


def test_under_tls_the_byte_is_one_that_is_read(echo_port: int) -> None:
    record = bytes([23, 3, 3, 0, 2]) + b"ab"
    with FaultProxy("127.0.0.1", echo_port) as proxy:
        for after, hit in ((0, 0), (2, 3), (6, 6), (9, 10)):
            proxy.damage_next(Way.OUT, after, tls=True)
            with connect(proxy) as connection:
                for byte in 2 * record:
                    connection.sendall(bytes([byte]))
                changed = [at for at, byte in enumerate(receive(connection, 14)) if byte != (2 * record)[at]]
                # Only the position matters: a damaged header may have another length.
                assert changed == [hit]
