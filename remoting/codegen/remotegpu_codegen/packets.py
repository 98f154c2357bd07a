"""The packets of the control sockets (registry/packets.yaml): enums of Rust, and Python for the appliance."""

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from remotegpu_codegen.registry import RegistryError
from remotegpu_codegen.text import banner

# By type: of Rust, of Python, and how Python reads it from a packet that may contain anything.
_PLAIN: Final = {
    "u16": ("u16", "int", "whole_number"),
    "u32": ("u32", "int", "whole_number"),
    "u64": ("u64", "int", "whole_number"),
    "bool": ("bool", "bool", "flag"),
    "str": ("String", "str", "text"),
    "token": ("Token", "str", "text"),
}
_ZERO: Final = {"int": "0", "bool": "False", "str": '""'}
# The Python modules, by socket: those that the appliance reads, and those that it writes.
_READ: Final = {"Request": "worker_requests", "GatewayEvent": "gateway_events"}
_WRITTEN: Final = {"Order": "worker_orders", "GatewayOrder": "gateway_orders"}


@dataclass(frozen=True)
class Packet:
    name: str
    op: str
    doc: str
    file: str
    fields: Mapping[str, str]
    optional: tuple[str, ...]

    @property
    def text(self) -> str:
        """The documentation, with the descriptor."""
        return f"{self.doc} It comes with {self.file}." if self.file else self.doc


@dataclass(frozen=True)
class Socket:
    name: str
    sender: str
    receiver: str
    case: str
    packets: tuple[Packet, ...]


@dataclass(frozen=True)
class Table:
    structs: Mapping[str, Packet]
    sockets: tuple[Socket, ...]

    def plain(self, kind: str) -> tuple[str, str, str]:
        """Rust's type, Python's type and Python's reader of a type other than a list. RegistryError: there is none."""
        if kind in _PLAIN:
            return _PLAIN[kind]
        if kind in self.structs:
            return kind, kind, f"_{kind.lower()}"
        raise RegistryError(f"packets.yaml: there is no type {kind!r}")


def load(content: Mapping[str, Any]) -> Table:
    """Reads the table. RegistryError: a type or an optional field that does not exist."""
    structs = {name: _packet(name, "", each) for name, each in content["structs"].items()}
    sockets = []
    for name, each in content["sockets"].items():
        packets = tuple(_packet(packet, _op(packet, each["case"]), given) for packet, given in each["packets"].items())
        sockets.append(Socket(name, each["from"], each["to"], each["case"], packets))
    table = Table(structs, tuple(sockets))
    for packet in [*structs.values(), *(packet for socket in sockets for packet in socket.packets)]:
        for kind in packet.fields.values():
            table.plain(kind.split()[-1])
        if unknown := set(packet.optional) - set(packet.fields):
            raise RegistryError(f"packets.yaml: {packet.name} has no field {', '.join(sorted(unknown))}")
    return table


def _packet(name: str, op: str, given: Mapping[str, Any]) -> Packet:
    fields = given.get("fields", {})
    return Packet(name, op, given["doc"], given.get("file", ""), fields, tuple(given.get("optional", ())))


def _op(name: str, case: str) -> str:
    return name.lower() if case == "lowercase" else re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def rust(table: Table) -> str:
    """The enums of all sockets. Each can be written and read, so that tests can be either end."""
    parts = [
        banner("//!", table),
        "//! Packets of the control sockets between appliance, gateway and worker: registry/packets.yaml.",
        "",
        "use serde::{Deserialize, Serialize};",
        "",
        "use super::token::Token;",
    ]
    for struct in table.structs.values():
        parts += ["", *_comment(struct.doc, ""), _derive([struct]), f"pub struct {struct.name} {{"]
        parts += [f"    pub {name}: {_rust_type(table, kind)}," for name, kind in struct.fields.items()]
        parts.append("}")
    for socket in table.sockets:
        parts += ["", f"/// Packets from the {socket.sender} to the {socket.receiver}.", _derive(socket.packets)]
        parts += [f'#[serde(tag = "op", rename_all = "{socket.case}")]', f"pub enum {socket.name} {{"]
        for packet in socket.packets:
            parts += _comment(packet.text, "    ")
            parts += (
                [f"    {packet.name},"]
                if not packet.fields
                else [f"    {packet.name} {{", *_rust_fields(table, packet), "    },"]
            )
        parts.append("}")
    return "\n".join(parts) + "\n"


def _derive(packets: Sequence[Packet]) -> str:
    """Small packets are copied: those of numbers alone."""
    kinds = {kind for packet in packets for kind in packet.fields.values()}
    copied = "Copy, " if kinds <= {"u16", "u32", "u64", "bool"} else ""
    return f"#[derive(Debug, Clone, {copied}PartialEq, Eq, Serialize, Deserialize)]"


def _rust_fields(table: Table, packet: Packet) -> list[str]:
    lines = []
    for name, kind in packet.fields.items():
        lines += ["        #[serde(default)]"] if name in packet.optional else []
        lines.append(f"        {name}: {_rust_type(table, kind)},")
    return lines


def _rust_type(table: Table, kind: str) -> str:
    outer, _, inner = kind.rpartition(" ")
    plain = table.plain(inner)[0]
    return {"": plain, "list": f"Vec<{plain}>", "maybe": f"Option<{plain}>"}[outer]


def _comment(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, 120 - len(indent), initial_indent=f"{indent}/// ", subsequent_indent=f"{indent}/// ")


def python(table: Table) -> dict[str, str]:
    """The modules of the appliance by name: dataclasses of the packets that it reads, functions for those it writes."""
    sockets = {socket.name: socket for socket in table.sockets}
    read = {module: _readers(table, sockets[name]) for name, module in _READ.items()}
    written = {module: _writers(table, sockets[name]) for name, module in _WRITTEN.items()}
    return read | written


def _head(table: Table, socket: Socket, *imports: str) -> list[str]:
    return [
        banner("#", table),
        f'"""Packets from the {socket.sender} to the {socket.receiver}: registry/packets.yaml."""',
        "",
        *imports,
        "",
    ]


def _structs_of(table: Table, socket: Socket) -> list[Packet]:
    kinds = {word for packet in socket.packets for kind in packet.fields.values() for word in kind.split()}
    return [struct for name, struct in table.structs.items() if name in kinds]


def _readers(table: Table, socket: Socket) -> str:
    structs = _structs_of(table, socket)
    parts = _head(
        table,
        socket,
        "from collections.abc import Callable",
        "from dataclasses import dataclass",
        "from typing import Final",
        "",
        "from remotegpu.appliance.packets import Packet, flag, items, text, whole_number",
    )
    for each in [*structs, *socket.packets]:
        parts += ["", "@dataclass(frozen=True, slots=True)", f"class {each.name}:", *_docstring(each.text)]
        parts += [""] * bool(each.fields)
        parts += [f"    {name}: {_python_type(table, kind)}" for name, kind in each.fields.items()]
        parts.append("")
    for each in structs:
        parts += [
            "",
            f"def _{each.name.lower()}(packet: Packet) -> {each.name}:",
            f"    return {_made(table, each)}",
            "",
        ]
    parts += ["", f"{socket.name} = {' | '.join(each.name for each in socket.packets)}", ""]
    parts.append(f"_READERS: Final[dict[str, Callable[[Packet], {socket.name}]]] = {{")
    parts += [f'    "{each.op}": lambda packet: {_made(table, each)},' for each in socket.packets]
    parts += ["}", "", "", f"def read(packet: Packet) -> {socket.name} | None:"]
    parts.append('    """Reads a packet, which may contain anything: what is no value of its type is 0, "" or False.')
    parts += ["", "    None: it is none of these packets.", '    """']
    parts += ['    reader = _READERS.get(text(packet, "op"))', "    return None if reader is None else reader(packet)"]
    return "\n".join(parts) + "\n"


def _made(table: Table, packet: Packet) -> str:
    return f"{packet.name}({', '.join(_read_field(table, name, kind) for name, kind in packet.fields.items())})"


def _read_field(table: Table, name: str, kind: str) -> str:
    outer, _, inner = kind.rpartition(" ")
    reader = table.plain(inner)[2]
    if not outer and inner in _PLAIN:
        return f'{reader}(packet, "{name}")'
    if outer == "list" and inner in table.structs:
        return f'tuple({reader}(each) for each in items(packet, "{name}") if isinstance(each, dict))'
    if outer == "list":
        return f'tuple({reader}({{"": each}}, "") for each in items(packet, "{name}"))'
    raise RegistryError(f"packets.yaml: the appliance cannot read {kind}")


def _writers(table: Table, socket: Socket) -> str:
    structs = _structs_of(table, socket)
    parts = _head(
        table,
        socket,
        "from collections.abc import Sequence",
        "from typing import TypedDict",
        "",
        "from remotegpu.appliance.packets import Packet",
    )
    for struct in structs:
        parts += ["", f"class {struct.name}(TypedDict):", *_docstring(struct.doc), ""]
        parts += [f"    {field}: {_python_type(table, kind)}" for field, kind in struct.fields.items()]
        parts.append("")
    for each in socket.packets:
        arguments = [_argument(table, each, name, kind) for name, kind in each.fields.items()]
        taken = f"*, {', '.join(arguments)}" if arguments else ""
        pairs = [f'"op": "{each.op}"', *(f'"{name}": {_value(name, kind)}' for name, kind in each.fields.items())]
        parts += ["", f"def {_op(each.name, 'snake_case')}({taken}) -> Packet:", *_docstring(each.text)]
        parts += [f"    return {{{', '.join(pairs)}}}", ""]
    return "\n".join(parts)


def _argument(table: Table, packet: Packet, name: str, kind: str) -> str:
    zero = f" = {_ZERO[table.plain(kind)[1]]}" if name in packet.optional else ""
    return f"{name}: {_python_type(table, kind, written=True)}{zero}"


def _value(name: str, kind: str) -> str:
    return f"list({name})" if kind.startswith("list") else name


def _python_type(table: Table, kind: str, *, written: bool = False) -> str:
    outer, _, inner = kind.rpartition(" ")
    plain = table.plain(inner)[1]
    several = f"Sequence[{plain}]" if written else f"tuple[{plain}, ...]"
    return {"": plain, "list": several, "maybe": f"{plain} | None"}[outer]


def _docstring(text: str) -> list[str]:
    if len(text) < 110:
        return [f'    """{text}"""']
    first, *rest = textwrap.wrap(text, 112, initial_indent='    """', subsequent_indent="    ")
    return [first, *rest, '    """']
