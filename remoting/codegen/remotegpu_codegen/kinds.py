"""The kinds of parameters: the form of each kind in C, on the wire and in a call of the real driver."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Scalar:
    """A value that is sent unchanged."""

    client: str
    """Its type in the exported function."""
    wire: str
    """Its type in a frame."""
    driver: str
    """Its type in a call of the real driver."""

    def to_wire(self, name: str) -> str:
        return name if self.client == self.wire else f"({name} as {self.wire})"

    def from_wire(self, expression: str) -> str:
        return expression if self.client == self.wire else f"{expression} as {self.client}"

    def to_driver(self, name: str) -> str:
        return name if self.driver == self.wire else f"{name} as {self.driver}"

    def from_driver(self, name: str) -> str:
        return name if self.driver == self.wire else f"({name} as {self.wire})"


@dataclass(frozen=True)
class Handle:
    """A handle of the program. Ids identify it on the wire."""

    client: str
    fields: tuple[tuple[str, str], ...]
    """Suffix and type of the fields that name it in a frame."""


@dataclass(frozen=True)
class Structure:
    """An input structure. A function of the client reads it, and a type of the worker rebuilds it."""

    client: str
    reader: str
    """Turns the program's pointer into what travels; can fail."""
    wire: str
    driver: str
    rebuilder: str
    """Its `new` takes what arrived and can fail; its `raw` is what the driver is given."""


def _plain(name: str) -> Scalar:
    return Scalar(name, name, name)


SCALARS = {
    "u8": _plain("u8"),
    "u16": _plain("u16"),
    "u32": _plain("u32"),
    "i32": _plain("i32"),
    "u64": _plain("u64"),
    "f32": _plain("f32"),
    "size": Scalar("usize", "u64", "usize"),
    "dptr": _plain("u64"),
}

STREAM = "stream"
"""Not in the payload: the frame's stream."""
FUNCTION = "function"
"""A CUfunction or CUkernel: first in the payload, as its module and its place there."""
EVENT = "event"

HANDLES = {
    STREAM: Handle("CUstream", ()),
    FUNCTION: Handle("CUfunction", (("module", "u64"), ("index", "u32"))),
    EVENT: Handle("CUevent", (("id", "u64"),)),
}

STRUCTURES = {
    "launch_config": Structure(
        client="*const CUlaunchConfig",
        reader="launch::read_shape",
        wire="LaunchShape",
        driver="*const CUlaunchConfig",
        rebuilder="AskedLaunch",
    ),
}

NAMES = frozenset(SCALARS) | frozenset(HANDLES) | frozenset(STRUCTURES)
