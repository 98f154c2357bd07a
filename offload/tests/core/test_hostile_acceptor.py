"""An acceptor that answers whatever it likes: nothing of it runs here, and nothing here is changed."""

from __future__ import annotations

import collections
import copyreg
import dataclasses
import enum
import functools
import importlib
import io
import operator
import os
import pickle
import socket
import struct
import subprocess
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest

from remotegpu_offload.objects import arrays, frames, sparse, vocabulary
from remotegpu_offload.objects.codec import Codec, RefusedError, UnknownObjectError

ran: list[str] = []


def trap(*_: Any, **__: Any) -> str:
    ran.append("trap")
    return "trapped"


class Colour(enum.Enum):
    RED = 1

    @classmethod
    def _missing_(cls, value: object) -> Any:
        trap()


@dataclasses.dataclass
class Sent:
    """A class of which the program has sent instances, so they are taken; its constructor is the program's own
    affair."""

    x: int

    def __post_init__(self) -> None:
        trap()


class NeverSent:
    def __setstate__(self, state: Any) -> None:
        trap()


class Meta(type):
    pass


@pytest.fixture
def codec() -> Iterator[Codec]:
    """Yields the client's codec, of a program whose rules name this very package, which has imported `os` and more."""
    made = Codec(client=True, trusted=False, packages={"test_hostile_acceptor"})
    made.sent_types.update((Sent, Colour))
    ran.clear()
    yield made
    assert ran == []


@pytest.fixture
def narrow() -> Codec:
    """Returns the codec of a program whose rules name nothing."""
    made = Codec(client=True, trusted=False)
    made.sent_types.update((Sent, Colour))
    return made


def read(codec: Codec, stream: bytes) -> Any:
    return codec.loads({"v": 1}, [stream])


class Calls:
    """Pickles as a call."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.reduced = (function, arguments)

    def __reduce__(self) -> Any:
        return self.reduced


GADGETS: dict[str, tuple[Any, ...]] = {
    "os.system": (os.system, "touch /tmp/never"),
    "eval": (eval, "trap()"),
    "exec": (exec, "trap()"),
    "compile": (compile, "trap()", "", "eval"),
    "getattr": (getattr, "", "join"),
    "setattr": (setattr, Sent, "x", 1),
    "__import__": (__import__, "os"),
    "open": (open, os.devnull, "w"),
    "breakpoint": (breakpoint,),
    "print": (print, "x"),
    "input": (input,),
    "type": (type, "T", (), {}),
    "vars": (vars,),
    "map": (map, trap, [1]),
    "iter": (iter, trap, 1),
    "partial": (functools.partial, trap),
    "reduce": (functools.reduce, trap, [1, 2]),
    "attrgetter": (operator.attrgetter("x"), 1),
    "methodcaller": (operator.methodcaller, "upper"),
    "itemgetter": (operator.itemgetter, 0),
    "import_module": (importlib.import_module, "antigravity"),
    "Popen": (subprocess.Popen, ["true"]),
    "pickle.loads": (pickle.loads, b"N."),
    "copyreg": (copyreg._reconstructor, NeverSent, object, None),  # type: ignore[attr-defined]
    "BytesIO": (io.BytesIO, b"x"),
    "np.load": (np.load, "/etc/passwd"),
    "np.memmap": (np.memmap, "/etc/passwd"),
    "np.fromfile": (np.fromfile, "/etc/passwd"),
    "np.frombuffer": (np.frombuffer, b"12345678", "O"),
    "reconstruct": (np.zeros(1).__reduce__()[0], np.ndarray, (0,), b"b"),
    "read_pickle": (pd.read_pickle, "/etc/passwd"),
    "pd.eval": (pd.eval, "1"),
    "socket": (socket.socket,),
    "own function": (trap,),
    "own class": (Sent, 1),
    "unsent class": (NeverSent,),
    "metaclass": (Meta, "T", (), {}),
}


@pytest.mark.parametrize("name", GADGETS)
def test_no_gadget_is_called(codec: Codec, narrow: Codec, name: str) -> None:
    stream = pickle.dumps(Calls(*GADGETS[name]), 5)
    for reader in (codec, narrow):
        with pytest.raises(RefusedError) as raised:
            read(reader, stream)
        assert "trust: full" in str(raised.value) or "nothing of it was run" in str(raised.value)


def text(value: str) -> bytes:
    raw = value.encode()
    return b"\x8c" + bytes([len(raw)]) + raw


def named(module: str, name: str) -> bytes:
    return b"\x80\x05" + text(module) + text(name) + b"\x93"


HERE = __name__


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (HERE, "os.system"),
        (HERE, "subprocess.Popen"),
        (HERE, "__builtins__.eval"),
        (HERE, "Sent.__init__.__globals__"),
        (HERE, "NeverSent.__class__"),
        (HERE, "NeverSent.__bases__"),
        (HERE, "os"),
        (HERE, "ran"),
        (HERE, "importlib.import_module"),
        ("os", "system"),
        ("posix", "system"),
        ("types", "FunctionType"),
        ("types", "CodeType"),
        ("types", "MethodType"),
        ("builtins", "eval"),
        ("builtins", "type"),
        ("builtins", "object.__subclasses__"),
        ("sys", "modules"),
        ("collections", "_sys.modules"),
        ("numpy", "load"),
        ("numpy", "dtype"),
        ("pandas", "read_pickle"),
        ("no_such_module", "x"),
        ("", ""),
        ("remotegpu_offload.objects.values", "sys.modules"),
        ("remotegpu_offload.objects.codec", "Codec"),
        ("remotegpu_offload.objects.vocabulary", "made"),
        ("remotegpu_offload.objects.vocabulary", "named"),
        ("remotegpu_offload.objects.vocabulary", "kept"),
        ("remotegpu_offload.objects.vocabulary", "_nowhere"),
    ],
)
def test_no_name_leads_elsewhere(codec: Codec, module: str, name: str) -> None:
    with pytest.raises(RefusedError):
        read(codec, named(module, name) + b".")
    with pytest.raises(RefusedError):
        read(codec, named(module, name) + b")R.")


@pytest.mark.parametrize(
    "stream",
    [
        b"cos\nsystem\n.",  # GLOBAL
        b"(S'true'\nios\nsystem\n.",  # INST
        b"(cos\nsystem\nS'true'\no.",  # OBJ
        b"\x82\x01.",  # EXT1
        b"Pname\n.",
        b"\x80\x02K\x01Q.",  # BINPERSID
        b"K\x01p0\n0g0\n.",  # PUT, GET
        b"K\x01r\xff\xff\xff\xff.",  # LONG_BINPUT: a memo of 32 GiB for C's unpickler
        b"K\x012.",  # DUP
        b"I1\n.",
        b"F1.5\n.",
        b"\x80\x05j\xff\xff\xff\xff.",
        b"\x80\x05h\x05.",
        b"\x80\xff.",
        b"\x80\x05\x96" + struct.pack("<Q", 1 << 60) + b".",  # BYTEARRAY8
        b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b".",
        b"\x80\x05\x8e" + struct.pack("<Q", (1 << 64) - 1) + b".",  # BINBYTES8
        b"\x80\x05\x8d" + struct.pack("<Q", 1 << 60) + b".",  # BINUNICODE8
        b"\x80\x05\x8b" + struct.pack("<i", -1) + b".",  # LONG4
        b"\x80\x05\x97.",  # NEXT_BUFFER: there is none
        b"\x80\x05N\x98.",
        b"\x80\x05",
        b"",
        b".",
        b"\x80\x05)R.",
        b"\x80\x05K\x01K\x02b.",
        b"\x80\x05N]\x94K\x01K\x02s.",
        b"\xff\xfe garbage",
    ],
)
def test_no_broken_pickle_is_read(codec: Codec, stream: bytes) -> None:
    with pytest.raises(RefusedError):
        read(codec, stream)


def test_nothing_that_was_here_before_is_changed(codec: Codec) -> None:
    def callback() -> None: ...

    box = types.SimpleNamespace(x=1)
    owned = [codec.exports.export(callback, "call"), codec.exports.export(box, "object")]
    state = b"}" + text("x") + b"K\x07s"
    slots = b"N}" + text("__doc__") + b"K\x07s\x86"
    for ident in owned:
        own = named(vocabulary.__name__, "own") + b"K" + bytes([ident]) + b"\x85R"
        assert read(codec, own + b".") in (callback, box)
        for change in (state + b"b.", slots + b"b.", text("x") + b"K\x07s.", b"K\x07a.", b"(K\x07\x90.", b"(K\x07e."):
            with pytest.raises(RefusedError):
                read(codec, own + change)
    colour = pickle.dumps(Colour.RED, 5)[:-1]
    member = Codec(client=False).dumps(Colour.RED).buffers[0]
    assert read(codec, bytes(member)) is Colour.RED
    for target in (bytes(member)[:-1], named(HERE, "Sent"), named("builtins", "int"), colour):
        for change in (state + b"b.", slots + b"b."):
            with pytest.raises(RefusedError):
                read(codec, target + change)
    assert box.x == 1 and vars(Sent).get("x") is None and Colour.RED.value == 1 and callback.__doc__ is None


def test_instances_are_made_without_their_constructor(codec: Codec, narrow: Codec) -> None:
    value = Sent.__new__(Sent)
    value.x = 4
    for reader in (codec, narrow):
        found = read(reader, pickle.dumps(value, 5))
        assert type(found) is Sent and found.x == 4
    with pytest.raises(RefusedError, match="NeverSent"):
        read(narrow, pickle.dumps(NeverSent(), 5))
    with pytest.raises(RefusedError):
        read(codec, named("builtins", "type") + b")\x81.")
    with pytest.raises(RefusedError):
        read(codec, named(HERE, "Meta") + b")\x81.")


def encoded(function: Callable[..., Any], *arguments: Any) -> bytes:
    """Encodes a call of one of the functions that may be called."""
    writer = Codec(client=False)
    return b"".join(bytes(part) for part in writer.dumps(Calls(function, *arguments)).buffers)


F8 = np.dtype("f8")


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (arrays.array, (b"x" * 16, F8, (3,), "C")),
        (arrays.array, (b"x" * 16, F8, (1,), "C")),
        (arrays.array, (b"x" * 16, F8, (-2,), "C")),
        (arrays.array, (b"x" * 16, F8, (1 << 40, 1 << 40), "C")),
        (arrays.array, (b"x" * 16, np.dtype("O"), (2,), "C")),
        (arrays.array, (b"x" * 16, "f8", (2,), "C")),
        (arrays.array, (1 << 40, F8, (2,), "C")),
        (arrays.objects, (5, np.dtype("O"), (2,), "C")),
        (arrays.objects, ([1], np.dtype("O"), (5,), "C")),
        (arrays.scalar, (b"x", F8)),
        (arrays.scalar, (b"x" * 8, np.dtype("O"))),
        (arrays.dtype, ({"names": ["a"], "formats": ["O"], "offsets": [1 << 30], "itemsize": 8},)),
        (arrays.dtype, ({"names": ["a"], "formats": ["f8"], "offsets": [-8], "itemsize": 8},)),
        (arrays.dtype, (("f8", 2, 3),)),
        (
            arrays.generator,
            ("MT19937", {"bit_generator": "MT19937", "state": {"key": np.zeros(624, "u4"), "pos": 1 << 20}}),
        ),
        (arrays.generator, ("MT19937", {"bit_generator": "MT19937", "state": {"key": np.zeros(3, "u4"), "pos": 0}})),
        (arrays.generator, ("__class__", {})),
        (arrays.generator, ("Philox", {"state": 1, "buffer_pos": 99})),
        (arrays.random, (1, None)),
        (arrays.ufunc, ("load",)),
        (arrays.array_as, ("memmap", np.zeros(3))),
        (sparse.sparse, ("csr", "array", (np.ones(1), np.array([9]), np.array([0, 1])), (1, 2))),
        (sparse.sparse, ("csr", "array", (np.ones(1), np.array([0]), np.array([0, 1 << 30])), (1, 2))),
        (sparse.sparse, ("coo", "array", (np.ones(1), (np.array([7]), np.array([0]))), (1, 2))),
        (sparse.sparse, ("save", "npz", (), ())),
        (sparse.as_format, (np.zeros(3), "lil")),
        (frames.column, ("categorical", (np.array([5]), pd.Index(["a"]), False))),
        (frames.column, ("eval", ())),
        (frames.index, ("multi", ([pd.Index(["a"])], [np.array([7])]), ["n"])),
        (frames.frame, (pd.Index(["a"]), [np.zeros(2), np.zeros(3)], pd.RangeIndex(2), {})),
        (frames.frame, (pd.Index(["a", "b", "c"]), np.zeros((2, 2)), pd.RangeIndex(2), {})),
        (collections.defaultdict, (trap,)),
        (collections.deque, (iter, 3)),
        (bytearray, (1 << 40,)),
        (set, (1 << 40,)),
    ],
)
def test_no_array_or_frame_with_a_false_form_is_made(codec: Codec, function: Any, arguments: Any) -> None:
    stream = encoded(function, *arguments)
    with pytest.raises(RefusedError):
        read(codec, stream)


def test_a_fraction_is_not_computed_from_an_exponent(codec: Codec) -> None:
    with pytest.raises(RefusedError):
        read(codec, named("fractions", "Fraction") + text("1e9999999999") + b"\x85R.")


def test_a_type_on_the_stack_is_not_called_with_anything(codec: Codec) -> None:
    for name in ("int", "str", "bytes", "list", "dict", "float"):
        with pytest.raises(RefusedError):
            read(codec, named("builtins", name) + b"K\x01\x85R.")


def test_a_dtype_cannot_be_given_another_state(codec: Codec) -> None:
    stream = encoded(arrays.dtype, "f8")
    state = b"(K\x03" + text(">") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb."
    with pytest.raises(RefusedError):
        read(codec, stream[:-1] + state)
    assert np.dtype("f8").isnative


def test_deep_nesting_does_not_end_the_process(codec: Codec) -> None:
    depth = 200_000
    value = read(codec, b"\x80\x05" + b")" + b"\x85" * depth + b".")
    for _ in range(depth):
        (value,) = value
    assert value == ()


def test_a_deep_key_is_not_hashed(codec: Codec) -> None:
    deep = b")" + b"\x85" * 500_000
    doubled = b")" + b"\x94h\x00\x86" + b"".join(b"\x94h" + bytes([n]) + b"\x86" for n in range(1, 200))
    for key in (deep, doubled):
        for stream in (b"}" + key + b"Ns.", b"}(" + key + b"Nu.", b"\x8f(" + key + b"\x90.", b"(" + key + b"\x91."):
            with pytest.raises(RefusedError):
                read(codec, b"\x80\x05" + stream)


def test_a_memo_is_no_larger_than_its_pickle(codec: Codec) -> None:
    for filling in (b"K\x010" * 5000, b"G12345678" + b"0K\x01" * 5000):
        with pytest.raises(RefusedError):
            read(codec, b"\x80\x05" + filling + b"r\xff\xff\xff\xff.")


@pytest.mark.parametrize("ident", [0, -1, 99, 1 << 63, 1 << 80, "1", None, 1.0])
def test_no_id_of_another_session_is_taken(codec: Codec, ident: Any) -> None:
    raw = pickle.dumps(ident, 5)[2:-1]
    for word in ("own", "came"):
        with pytest.raises((RefusedError, UnknownObjectError)):
            read(codec, named(vocabulary.__name__, word) + raw + b"\x85R.")
    with pytest.raises(RefusedError):
        read(codec, named(vocabulary.__name__, "foreign") + b"(" + raw + text("no kind") + b"NtR.")
