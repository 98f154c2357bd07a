"""A client that asks for calls and objects in wrong ways: each answer is a failure, and the session continues.

What a client may run is not tested here: the acceptor's process is its own, and the sandbox around it is tested
elsewhere.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from offload_local import local_session

from remotegpu_offload.client.session import Session
from remotegpu_offload.config.model import Config, FunctionRule
from remotegpu_offload.functions import client
from remotegpu_offload.functions.acceptor import find
from remotegpu_offload.objects import vocabulary
from remotegpu_offload.objects.codec import Codec
from remotegpu_offload.wire.errors import RemoteFailure
from remotegpu_offload.wire.frames import Service

NOTHING = pickle.dumps(((), {}), 5)


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with local_session(Config(rules=(FunctionRule("builtins.*"),))) as session:
        yield session


def goes_on(session: Session) -> bool:
    return bool(client.wrap(len, FunctionRule("builtins.len"), session)([1, 2]) == 2)


@pytest.mark.parametrize(
    ("header", "buffers"),
    [
        ({}, []),
        ({"op": "call"}, []),
        ({"op": "call", "v": 1}, []),
        ({"op": "call", "v": 1, "t": ["builtins", "len"]}, [b"garbage"]),
        ({"op": "call", "v": 3, "t": ["builtins", "len"]}, [NOTHING]),
        ({"op": "call", "v": -1, "t": ["builtins", "len"]}, [NOTHING]),
        ({"op": "call", "v": "x", "t": ["builtins", "len"]}, [NOTHING]),
        ({"op": "call", "v": 1, "t": []}, [NOTHING]),
        ({"op": "call", "v": 1, "t": 5}, [NOTHING]),
        ({"op": "call", "v": 1, "t": ["no.such.module", "x"]}, [NOTHING]),
        ({"op": "call", "v": 1, "t": ["builtins", "nothing"]}, [NOTHING]),
        ({"op": "call", "v": 1, "m": "x"}, [NOTHING]),
        ({"op": "?", "v": 1}, [NOTHING]),
        ({"o": 77, "m": "__call__", "v": 1}, [NOTHING]),
        ({"o": "77", "m": "__next__", "v": 1, "most": 1}, [NOTHING]),
        ({"o": None, "m": None, "v": 1}, [NOTHING]),
        ({"op": "call", "v": 1, "t": ["builtins", "list"], "mutates": [5]}, [NOTHING]),
        ({"op": "call", "v": 1, "t": ["builtins", "list"], "mutates": 5}, [NOTHING]),
        ({"op": "call", "v": 1, "t": ["builtins", "list"], "levels": 3}, [NOTHING]),
        ({"op": "call", "v": 1, "t": ["builtins", "list"], "free": [[1]]}, [NOTHING]),
        ({"op": "call", "v": 1, "t": ["builtins", "list"], "pages": {"0": [["x", 9, False]]}, "hold": 1}, []),
        ({"op": "call", "v": 1, "t": ["builtins", "list"], "pages": {"0": [["x", 9, True]]}, "hold": 1}, [b"short"]),
        ({"op": "call", "v": 1, "t": ["builtins", "list"], "pages": 7}, [NOTHING]),
    ],
)
def test_malformed_calls_are_not_executed(session: Session, header: dict[str, Any], buffers: list[bytes]) -> None:
    reply = session.peer.request(Service.CALL, header, buffers)
    assert reply.header["raised"]["text"] and "items" not in reply.header
    assert goes_on(session)


@pytest.mark.parametrize(
    "header",
    [
        {},
        {"op": "nothing"},
        {"op": "pages"},
        {"op": "pages", "hold": 1, "names": ["x"]},
        {"op": "free", "free": 1},
        {"op": "piece", "index": 9, "start": 0},
        {"op": "begin", "sizes": [-1]},
        {"op": "begin", "sizes": 1},
        {"op": "more", "index": 3, "start": 0},
        {"op": "take", "stream": 1},
    ],
)
def test_malformed_operations_on_objects_are_not_executed(session: Session, header: dict[str, Any]) -> None:
    with pytest.raises(RemoteFailure):
        session.peer.request(Service.OBJECTS, header)
    assert goes_on(session)


def test_ids_are_checked(session: Session) -> None:
    calls = client.of(session)
    codec = calls.codec
    for ident in (0, 5, -5, 1 << 63, (1 << 64) - 1):
        stream = pickle.dumps((_Own(ident),), 5)
        reply = session.peer.request(Service.CALL, {"op": "call", "t": ["builtins", "repr"], "v": 1}, [stream])
        assert reply.header["raised"]["name"] == "UnknownObjectError"
    # An id that is in use cannot be taken over.
    ident = codec.exports.mint()
    packed = codec.dumps((([1],), {}))
    header = {"op": "call", "t": ["builtins", "list"], "id": ident, **packed.header}
    assert "raised" not in session.peer.request(Service.CALL, header, packed.buffers).header
    assert "exists already" in session.peer.request(Service.CALL, header, packed.buffers).header["raised"]["text"]
    # Giving back more than one has does no harm, nor what one never had.
    gone = [[ident, 99], [ident, 1], [12345, 1], [-1, -1]]
    session.peer.request(Service.OBJECTS, {"op": "free", "free": gone})
    assert session.stats()["acceptor"]["objects"]["held"] == 0 and goes_on(session)


class _Own:
    def __init__(self, ident: int) -> None:
        self.ident = ident

    def __reduce__(self) -> Any:
        return vocabulary.own, (self.ident,)


def test_a_client_may_take_ids_only_of_its_own_kind() -> None:
    """The acceptor's own ids begin far above."""
    acceptor = Codec(client=False)
    acceptor.exports.place(1, "a", "object")
    assert acceptor.exports.export(object(), "object") >= 1 << 63


def test_names_lead_to_what_they_say() -> None:
    assert find("os.path", "join")("a", "b") == "a/b"
    with pytest.raises(AttributeError):
        find("os", "nothing")
    with pytest.raises(ImportError):
        find("no_such_module", "x")
