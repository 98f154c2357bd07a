"""Frames: what is written is read, and nothing else is taken for a frame."""

import json
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remotegpu_offload.wire import FrameError, Kind, Service
from remotegpu_offload.wire.frames import (
    HEAD_BYTES,
    MAX_BUFFERS,
    MAX_FRAME,
    MAX_HEADER,
    Frame,
    decode,
    encode,
    read_frame,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
FRAMES = st.builds(
    Frame,
    st.sampled_from(Kind),
    st.sampled_from(Service),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
    st.dictionaries(st.text(max_size=6), JSON, max_size=4),
    st.lists(st.binary(max_size=40), max_size=5),
)


def written(frame: Frame) -> bytes:
    return b"".join(encode(frame))


def same(left: Frame, right: Frame) -> bool:
    return (left.kind, left.service, left.thread, left.id, left.header, [bytes(b) for b in left.buffers]) == (
        right.kind,
        right.service,
        right.thread,
        right.id,
        right.header,
        [bytes(b) for b in right.buffers],
    )


@settings(deadline=None)
@given(FRAMES)
def test_what_is_written_is_read(frame: Frame) -> None:
    assert same(decode(written(frame)), frame)


@settings(deadline=None, max_examples=30)
@given(FRAMES)
def test_every_truncation_is_refused(frame: Frame) -> None:
    data = written(frame)
    for length in range(len(data)):
        with pytest.raises(FrameError):
            decode(data[:length])
    with pytest.raises(FrameError):
        decode(data + b"x")


@settings(deadline=None)
@given(FRAMES, st.data())
def test_a_changed_byte_is_another_frame_or_none(frame: Frame, choice: st.DataObject) -> None:
    data = bytearray(written(frame))
    at = choice.draw(st.integers(0, len(data) - 1))
    data[at] ^= choice.draw(st.integers(1, 255))
    try:
        read = decode(bytes(data))
    except FrameError:
        return
    # Spaces between JSON's tokens, or NaN, are read and not written again.
    assert isinstance(read.header, dict)
    assert sum(map(len, read.buffers)) == sum(map(len, frame.buffers)) or len(read.buffers) != len(frame.buffers)


def head(total: int, header: int, buffers: int, kind: int = 1, service: int = 1, zero: int = 0) -> bytes:
    return struct.pack("<QBBHIQII", total, kind, service, zero, 1, 1, header, buffers)


@pytest.mark.parametrize(
    ("data", "number"),
    [
        (head(MAX_FRAME + 1, 2, 0), MAX_FRAME),
        (head(MAX_HEADER + 100, MAX_HEADER + 1, 0), MAX_HEADER),
        (head(2**30, 2, MAX_BUFFERS + 1), MAX_BUFFERS),
        (head(26, 2, 0, kind=5), 5),
        (head(26, 2, 0, service=0), 0),
        (head(26, 2, 0, zero=1), 1),
        (head(3, 2, 0), 3),
        (head(2**64 - 1, 2, 0), MAX_FRAME),
    ],
)
def test_limits_are_checked_before_anything_is_allocated(data: bytes, number: int) -> None:
    asked: list[int] = []

    def read(count: int) -> bytearray:
        asked.append(count)
        assert count == HEAD_BYTES
        return bytearray(data)

    with pytest.raises(FrameError, match=rf"\b{number}\b"):
        read_frame(read)
    assert asked == [HEAD_BYTES]


def test_lengths_that_do_not_add_up_are_refused_before_the_buffers_are_allocated() -> None:
    asked: list[int] = []
    stream = head(24 + 8 + 2 + 5, 2, 1) + struct.pack("<Q", 2**40) + b"{}hello"

    def read(count: int) -> bytearray:
        at = sum(asked)
        asked.append(count)
        return bytearray(stream[at : at + count])

    with pytest.raises(FrameError, match=rf"\b5\b.*\b{2**40}\b"):
        read_frame(read)
    assert max(asked) == HEAD_BYTES


@pytest.mark.parametrize("header", [b"", b"[]", b"1", b"{", b"\xff\xff", b"[" * 100_000, b'{"a":' + b"9" * 5000 + b"}"])
def test_a_header_that_is_not_a_json_object_is_refused(header: bytes) -> None:
    with pytest.raises(FrameError):
        decode(head(24 + len(header), len(header), 0) + header)


def test_what_cannot_be_written_is_refused() -> None:
    with pytest.raises(FrameError, match=Service.TORCH.name):
        encode(Frame(Kind.NOTICE, Service.TORCH, 1, 0, {"a": object()}))
    with pytest.raises(FrameError, match=rf"\b{MAX_HEADER}\b"):
        encode(Frame(Kind.NOTICE, Service.TORCH, 1, 0, {"a": "x" * MAX_HEADER}))
    with pytest.raises(FrameError, match=rf"\b{MAX_BUFFERS}\b"):
        encode(Frame(Kind.NOTICE, Service.TORCH, 1, 0, {}, [b""] * (MAX_BUFFERS + 1)))
    with pytest.raises(FrameError):
        encode(Frame(Kind.NOTICE, Service.TORCH, 1, 0, {}, [memoryview(b"abcdef")[::2]]))


def test_a_buffer_of_any_element_counts_in_bytes_and_is_not_copied() -> None:
    memory = bytearray(64)
    numbers: Any = memoryview(memory).cast("d")
    parts = encode(Frame(Kind.NOTICE, Service.TORCH, 1, 0, {}, [numbers, numbers[:0]]))
    memory[0] = 7
    assert [bytes(b) for b in decode(b"".join(parts)).buffers] == [bytes(memory), b""]
    assert json.loads(bytes(parts[0])[HEAD_BYTES + 16 :]) == {}
