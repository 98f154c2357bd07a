"""An acceptor that answers calls with whatever it likes: the program hears an error, and nothing else happens."""

from __future__ import annotations

import os  # noqa: F401 - an answer names it
import pickle
import socket
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import pytest

from remotegpu_offload.client.session import Session
from remotegpu_offload.config.model import Config, FunctionRule
from remotegpu_offload.functions import client
from remotegpu_offload.functions.errors import RemoteError
from remotegpu_offload.objects.codec import Codec, RefusedError
from remotegpu_offload.wire.errors import LostError, RemoteFailure
from remotegpu_offload.wire.frames import Message, Service
from remotegpu_offload.wire.peer import Peer
from remotegpu_offload.wire.request import Request

ran: list[str] = []


def trap(*_: Any, **__: Any) -> str:
    ran.append("trap")
    return "trapped"


HERE = __name__


@pytest.mark.parametrize(
    "header",
    [
        {},
        {"v": "1"},
        {"v": None},
        {"v": 5},
        {"v": 1, "pages": {"0": [["name", 4, False]]}, "hold": 1},
        {"v": 1, "free": [[1]]},
        {"v": 1, "free": 3},
        {"raised": 3},
        {"raised": {"chain": 7}},
        {"raised": {"module": "os", "name": "system"}, "v": 1},
        {"v": 1, "changes": True},
        {"v": 1, "changes": True, "same": 0},
    ],
)
def test_a_malformed_answer_is_an_error_and_nothing_else(header: dict[str, Any]) -> None:
    def answer(request: Request) -> Message:
        return Message(
            header, [pickle.dumps((trap, ([], [(-1, 0, True, [1])])), 5)] if "changes" in header else [b"\x80\x05N."]
        )

    with hostile(answer) as (session, _):
        argument = [3]
        with pytest.raises((RefusedError, RemoteError)) as raised:
            client.wrap(len, FunctionRule("builtins.len"), session)(argument)
        assert argument == [3] and str(raised.value)


class hostile:  # noqa: N801 - a context manager
    """A session whose acceptor is this test."""

    def __init__(self, answer: Callable[[Request], Message | None]) -> None:
        self.answer = answer

    def __enter__(self) -> tuple[Session, Peer]:
        ours, theirs = socket.socketpair()
        self.acceptor = Peer(theirs, name="the program of this test", accepting=True)
        environment = {"name": "hostile", "backend": "cpu", "python": "", "packages": {}, "devices": []}
        self.acceptor.serve(Service.SESSION, lambda request: Message({"environment": environment}))
        self.acceptor.serve(Service.CALL, self.answer)
        self.acceptor.start()
        config = Config(rules=(FunctionRule("builtins.*"),))
        self.session = Session.open(config, connector=lambda wish: (ours, {"environment": environment}), offered={})
        return self.session, self.acceptor

    def __exit__(self, *_: object) -> None:
        self.session.close()
        self.acceptor.close()


def test_an_acceptor_that_closes_instead_of_answering(tmp_path: Any) -> None:
    def answer(request: Request) -> Message | None:
        threading.Thread(target=acceptor.close).start()
        acceptor.closed.wait(30)
        return None

    with hostile(answer) as (session, acceptor), pytest.raises(LostError):
        client.wrap(len, FunctionRule("builtins.len"), session)([1])


def test_only_what_was_handed_out_can_be_asked_for() -> None:
    """The acceptor calls back with whatever comes to its mind, in the middle of a call."""
    secret = types.SimpleNamespace(token="s3cret")
    asked: list[tuple[dict[str, Any], str]] = []

    def callback() -> str:
        return f"{secret.token}!"

    def answer(request: Request) -> Message:
        writer = Codec(client=False)
        payload = writer.dumps(((), {}))
        first = {"v": 1}
        wishes: list[dict[str, Any]] = [
            {"o": 1, "m": name}
            for name in ("__globals__", "__code__", "__class__", "__reduce__", "__setattr__", "__closure__", "read", "")
        ]
        wishes += [
            {"o": 2, "m": "__call__"},
            {"o": -1, "m": "__call__"},
            {"o": "1", "m": "__call__"},
            {"m": "__call__"},
        ]
        wishes += [{"op": "call", "t": ["os", "getcwd"]}, {"op": "call", "t": ["builtins", "eval"]}, {"op": "copy"}, {}]
        for wish in wishes:
            reply = acceptor.request(Service.CALL, {**wish, **first}, payload.buffers)
            asked.append((wish, reply.header.get("raised", {}).get("name", "")))
        for service in (Service.OBJECTS, Service.APP, Service.STATE):
            with pytest.raises(RemoteFailure):
                acceptor.request(service, {"op": "pages", "hold": 1, "names": ["0" * 32]})
        reply = acceptor.request(Service.CALL, {"o": 1, "m": "__call__", **first}, payload.buffers)
        asked.append(({}, Codec(client=False).loads(reply.header, reply.buffers)))
        packed = writer.dumps("done")
        return Message(packed.header, packed.buffers)

    with hostile(answer) as (session, acceptor):
        assert client.wrap(sorted, FunctionRule("builtins.sorted"), session)(callback) == "done"
    assert asked.pop()[1] == "s3cret!"
    assert len(asked) == 16 and {name for _, name in asked} == {"RefusedError", "UnknownObjectError"}


def test_exceptions_are_rebuilt_without_running_their_constructors() -> None:
    class LoudError(Exception):
        def __init__(self, *arguments: Any) -> None:
            trap()

    globals()["LoudError"] = LoudError
    LoudError.__qualname__ = "LoudError"
    ran.clear()
    described = {"module": HERE, "name": "LoudError", "text": "t", "notes": [], "chain": [], "where": "there"}
    packed = Codec(client=False).dumps((("a",), {"extra": 1}))
    raising = hostile(lambda request: Message({"raised": described, **packed.header}, packed.buffers))
    with raising as (session, _), pytest.raises(LoudError) as raised:
        client.wrap(len, FunctionRule("builtins.len"), session)([1])
    assert raised.value.args == ("a",) and raised.value.extra == 1 and ran == []  # type: ignore[attr-defined]
    assert "sys" in vars(sys.modules[HERE])
    for name in ("os.error", "builtins.eval", "sys", "Nothing"):
        described["name"] = name
        with raising as (session, _), pytest.raises(RemoteError):
            client.wrap(len, FunctionRule("builtins.len"), session)([1])


def test_a_traceback_shows_lines_of_loaded_files_only(tmp_path: Any) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("password\n")
    frames_there = [[str(secret), 1, "f", ""], [__file__, 1, "g", ""], ["/dev/zero", 1, "h", ""]]
    described = {
        "module": "builtins",
        "name": "KeyError",
        "text": "t",
        "chain": [{"frames": frames_there, "last": "end"}],
    }
    with hostile(lambda request: Message({"raised": described})) as (session, _), pytest.raises(RemoteError) as raised:
        client.wrap(len, FunctionRule("builtins.len"), session)([1])
    shown = str(raised.value.__cause__)
    assert "secret.txt" in shown and "password" not in shown and "An acceptor that answers" in shown
