"""A model on the wire: its bytes, and the files next to it that hold its weights.

ONNX is protobuf: https://protobuf.dev/programming-guides/encoding/, and onnx.proto for the fields' numbers. Only fields
that lead to the names of files are read.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

# Fields that lead from one message to the next, on the way to a tensor's external_data.
_WAY: Final[dict[str, dict[int, str]]] = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
}
_KEY, _VALUE = 1, 2
_LONGEST_VARINT: Final = 10


class Model(NamedTuple):
    """A file's name, its content, and the files that it names, by their names relative to it."""

    name: str
    data: bytes
    beside: Mapping[str, bytes]


def read(path: str) -> Model:
    """Reads the model in a file, with its weights' files.

    Raises OSError for a file that cannot be read.
    """
    at = Path(path)
    data = at.read_bytes()
    beside = {name: at.parent / name for name in sorted(external_files(data))}
    return Model(at.name, data, {name: file.read_bytes() for name, file in beside.items() if file.is_file()})


def write(model: Model, folder: str) -> str:
    """Writes a model and its files into a folder; returns the path of the model."""
    for name, data in {model.name: model.data, **model.beside}.items():
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return str(Path(folder, model.name))


def external_files(data: bytes) -> set[str]:
    """Lists the files in which a model's tensors lie, relative to it. It skips files that are not below its folder:
    they may belong to anyone.

    Empty for anything but an ONNX model.
    """
    found = set()
    to_do = [("model", memoryview(data))]
    try:
        while to_do:
            kind, message = to_do.pop()
            way = _WAY[kind]
            for number, part in _parts(message):
                if way.get(number) == "entry":
                    found.add(_location(part))
                elif number in way:
                    to_do.append((way[number], part))
    except ValueError:
        return set()
    return {name for name in found if name and _is_below(name)}


def _is_below(name: str) -> bool:
    path = Path(name)
    return not path.is_absolute() and ".." not in path.parts and "\0" not in name


def _location(entry: memoryview) -> str:
    parts = dict(_parts(entry))
    if bytes(parts.get(_KEY, b"")) != b"location":
        return ""
    return bytes(parts.get(_VALUE, b"")).decode()


def _parts(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yields the fields of a message that have a length: number, and contents.

    Raises ValueError for anything but a message.
    """
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        match key & 7:
            case 0:
                _, at = _varint(message, at)
            case 1:
                at += 8
            case 5:
                at += 4
            case 2:
                size, at = _varint(message, at)
                if at + size > len(message):
                    raise ValueError("a field is longer than its message")
                yield key >> 3, message[at : at + size]
                at += size
            case other:
                raise ValueError(f"{other} is no kind of field")


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(message[at : at + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, at + index + 1
    raise ValueError("a number has no end")
