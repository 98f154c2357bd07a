"""Frames: the binary format of messages. Pure.

Little endian: u64 number of following bytes, u8 kind, u8 service, u16 zero, u32 logical thread, u64 id, u32 size of the
header, u32 number of buffers. Then follow a u64 length for each buffer, the header as JSON, and the buffers.
"""

import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from remotegpu_offload.wire.errors import FrameError

MAX_HEADER = 16 << 20
MAX_BUFFERS = 65536
MAX_FRAME = 2 << 30

Buffer = bytes | bytearray | memoryview

_HEAD = struct.Struct("<QBBHIQII")
HEAD_BYTES = _HEAD.size
_AFTER_TOTAL = HEAD_BYTES - 8

_encode_header = json.JSONEncoder(separators=(",", ":")).encode
_decode_header = json.JSONDecoder().decode


class Kind(IntEnum):
    """The kinds of frames. A notice is a request without an answer."""

    REQUEST = 1
    REPLY = 2
    FAILURE = 3
    NOTICE = 4


class Service(IntEnum):
    """The component of the other side that receives a frame."""

    SESSION = 1
    CODE = 2
    FILES = 3
    STDIO = 4
    CALL = 5
    OBJECTS = 6
    TORCH = 7
    PROGRAM = 8
    STATE = 9
    APP = 10


_KINDS = {int(kind): kind for kind in Kind}
_SERVICES = {int(service): service for service in Service}


@dataclass(frozen=True, slots=True)
class Message:
    """A header of JSON types, and buffers."""

    header: dict[str, Any]
    buffers: Sequence[Buffer] = ()


class Frame(NamedTuple):
    """One frame. `id` is 0 for a notice; otherwise the reply repeats it."""

    kind: Kind
    service: Service
    thread: int
    id: int
    header: dict[str, Any]
    buffers: Sequence[Buffer] = ()


def encode(frame: Frame) -> list[Buffer]:
    """Returns the buffers to send, in order. Does not copy the frame's buffers.

    Raises:
        FrameError: the frame is larger than the protocol allows, or the header is not JSON.
    """
    try:
        header = _encode_header(frame.header).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise FrameError(f"the header of a {frame.service.name} message cannot be written as JSON: {error}") from None
    buffers = [flat(buffer) for buffer in frame.buffers]
    lengths = [len(buffer) for buffer in buffers]
    total = _AFTER_TOTAL + 8 * len(buffers) + len(header) + sum(lengths)
    _check(total, len(header), len(buffers))
    head = _HEAD.pack(total, frame.kind, frame.service, 0, frame.thread, frame.id, len(header), len(buffers))
    if not buffers:
        return [head + header]
    return [head + struct.pack(f"<{len(lengths)}Q", *lengths) + header, *buffers]


def flat(buffer: Buffer) -> Buffer:
    """Returns the same memory as bytes, so that `len` is the size in bytes.

    Raises FrameError if the buffer has gaps.
    """
    if not isinstance(buffer, memoryview):
        return buffer
    if buffer.nbytes == 0:
        return b""
    if not buffer.c_contiguous:
        raise FrameError("a buffer with gaps cannot be sent: make it contiguous first")
    return buffer if buffer.format == "B" and buffer.ndim == 1 else buffer.cast("B")


def read_frame(read: Callable[[int], bytearray]) -> Frame:
    """Reads the next frame. `read(n)` returns exactly n bytes in new memory; sizes are checked before each call.

    Raises:
        FrameError: the bytes are not a frame.
    """
    total, kind, service, zero, thread, number, header_bytes, count = _HEAD.unpack(read(HEAD_BYTES))
    if kind not in _KINDS or service not in _SERVICES or zero:
        raise FrameError(f"no frame: kind {kind}, service {service}")
    _check(total, header_bytes, count)
    rest = total - _AFTER_TOTAL - 8 * count - header_bytes
    if rest < 0:
        raise FrameError(f"a frame of {total} bytes cannot hold a header of {header_bytes} bytes and {count} buffers")
    lengths: tuple[int, ...] = struct.unpack(f"<{count}Q", read(8 * count)) if count else ()
    if sum(lengths) != rest:
        raise FrameError(f"the buffers of a frame should have {rest} bytes and have {sum(lengths)}")
    try:
        header = _decode_header(read(header_bytes).decode())
    except (ValueError, RecursionError) as error:
        raise FrameError(f"the header of a frame is no JSON: {error}") from None
    if not isinstance(header, dict):
        raise FrameError("the header of a frame is no JSON object")
    buffers = tuple(memoryview(read(length)) for length in lengths)
    return Frame(_KINDS[kind], _SERVICES[service], thread, number, header, buffers)


def decode(data: bytes) -> Frame:
    """Decodes `data`, which must be exactly one frame.

    Raises:
        FrameError: `data` is shorter or longer than one frame.
    """
    at = 0

    def read(count: int) -> bytearray:
        nonlocal at
        if at + count > len(data):
            raise FrameError(f"a frame ends after {len(data)} bytes")
        at += count
        return bytearray(data[at - count : at])

    frame = read_frame(read)
    if at != len(data):
        raise FrameError(f"{len(data) - at} bytes follow the frame")
    return frame


def _check(total: int, header: int, buffers: int) -> None:
    if header > MAX_HEADER:
        raise FrameError(f"a header of {header} bytes is more than the wire allows ({MAX_HEADER}): send it as a buffer")
    if buffers > MAX_BUFFERS:
        raise FrameError(f"{buffers} buffers are more than a frame may have ({MAX_BUFFERS}): send several frames")
    if total > MAX_FRAME:
        raise FrameError(f"a frame of {total} bytes is more than the wire allows ({MAX_FRAME}): send it in parts")
