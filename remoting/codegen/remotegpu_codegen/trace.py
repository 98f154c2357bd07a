"""The recorder's table (`trace`): every symbol of the driver, with the parameters that `parameters.yaml` gives it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from remotegpu_codegen.registry import Registry, RegistryError
from remotegpu_codegen.text import banner

INTEGERS = {
    "u8": (1, False),
    "u16": (2, False),
    "u32": (4, False),
    "i32": (4, True),
    "u64": (8, False),
    "size": (8, False),
}
PLAIN = {
    "f32": "Float",
    "address": "Address",
    "freed": "Freed",
    "host": "Host",
    "file": "File",
    "string": "StaticText",
    "image": "Image",
    "copy2d": "Copy2d",
    "copy3d": "Copy3d",
    "launch": "Launch",
    "extra": "Extra",
    "entry": "Entry",
    "table": "Table",
}
SIZED = {
    "memory": "Memory",
    "page_locked": "PageLocked",
    "registered": "Registered",
    "bytes": "Bytes",
    "data": "Data",
    "to": "To",
    "from": "From",
    "blob": "Blob",
}
OF_PARAMETER = {
    "params": "Params",
    "pointer_attribute": "PointerAttribute",
    "pool_attribute": "PoolAttribute",
    "stream_attribute": "StreamAttribute",
}
HANDLES = frozenset(
    "context module function kernel library link stream event pool physical graph green".split()  # noqa: SIM905
)
PARAMETER = re.compile(r"(?P<out>out )?(?P<new>new )?(?P<kind>\w+)(?:\((?P<arguments>[^()]*)\))? (?P<name>\w+)")


@dataclass(frozen=True)
class Parameter:
    kind: str
    arguments: tuple[str, ...]
    name: str
    out: bool
    new: bool


@dataclass(frozen=True)
class Structure:
    size: int
    fields: tuple[tuple[int, str, str], ...]
    """Offset, type and name of each."""


@dataclass(frozen=True)
class Parameters:
    structures: Mapping[str, Structure]
    functions: Mapping[str, tuple[Parameter, ...]]


def load(folder: Path) -> Parameters:
    """Reads `parameters.yaml`.

    Raises RegistryError if it contradicts itself.
    """
    table = yaml.safe_load((folder / "parameters.yaml").read_text())
    structures = {name: _structure(fields) for name, fields in table["structures"].items()}
    functions = {symbol: tuple(map(_parameter, texts)) for symbol, texts in table["functions"].items()}
    return Parameters(structures, functions)


def _structure(described: Sequence[Any]) -> Structure:
    size, *fields = described
    split = (field.split() for field in fields)
    return Structure(int(size), tuple((int(offset), kind, name) for offset, kind, name in split))


def _parameter(text: str) -> Parameter:
    found = PARAMETER.fullmatch(text)
    if found is None:
        raise RegistryError(f"{text!r} is not '[out] type name'")
    arguments = tuple(a.strip() for a in (found["arguments"] or "").split(",") if a.strip())
    return Parameter(found["kind"], arguments, found["name"], found["out"] is not None, found["new"] is not None)


def rust(registry: Registry, parameters: Parameters) -> str:
    unknown = parameters.functions.keys() - {f.symbol for f in registry.driver}
    if unknown:
        raise RegistryError(f"parameters.yaml: no function {sorted(unknown)}")
    symbols = sorted((symbol, f.symbol) for f in registry.driver for symbol in f.symbols)
    rows = "\n".join(
        f"    [{index}] {symbol}: {_row(base, parameters)};" for index, (symbol, base) in enumerate(symbols)
    )
    return f"""{banner("//!", rows)}

use crate::signature::Direction::{{In, Out}};
use crate::signature::Factor::{{Constant, Parameter}};
use crate::signature::Type::*;
use crate::signature::{{Function, Length, p}};

#[rustfmt::skip]
crate::functions! {{
{rows}
}}
"""


def _row(symbol: str, table: Parameters) -> str:
    if symbol not in table.functions:
        return "None"
    parameters = table.functions[symbol]
    places = {p.name: place for place, p in enumerate(parameters)}
    try:
        described = (
            f'p("{p.name}", {"Out" if p.out else "In"}, {_type(p, places, table.structures)})' for p in parameters
        )
        return f"Some(&[{', '.join(described)}])"
    except (KeyError, ValueError) as error:
        raise RegistryError(f"parameters.yaml: {symbol}: {error}") from error


def _type(  # noqa: PLR0911 (one for each form)
    parameter: Parameter, places: Mapping[str, int], structures: Mapping[str, Structure]
) -> str:
    kind, arguments = parameter.kind, parameter.arguments
    match kind:
        case "text":
            return f"TextBuffer({_length(arguments[0], places)})" if parameter.out else "Text"
        case "list":
            return f"List(&{_element(arguments[0], structures)}, {_length(arguments[1], places)})"
        case "callback":
            return f"Callback({str(arguments == ('stream',)).lower()})"
        case "pointer_attributes":
            return f"PointerAttributes({places[arguments[0]]}, {places[arguments[1]]})"
        case _ if kind in SIZED:
            return f"{SIZED[kind]}({_length(arguments[0], places)})"
        case _ if kind in OF_PARAMETER:
            return f"{OF_PARAMETER[kind]}({places[arguments[0]]})"
        case _ if parameter.new and kind in HANDLES:
            return f'NewHandle("{kind}")'
        case _:
            return _element(kind, structures)


def _element(kind: str, structures: Mapping[str, Structure]) -> str:
    if kind in INTEGERS:
        size, signed = INTEGERS[kind]
        return f"Integer({size}, {str(signed).lower()})"
    if kind in HANDLES:
        return f'Handle("{kind}")'
    if kind in structures:
        structure = structures[kind]
        fields = ", ".join(f'({at}, "{name}", {_element(of, structures)})' for at, of, name in structure.fields)
        return f"Structure({structure.size}, &[{fields}])"
    return PLAIN[kind]


def _length(text: str, places: Mapping[str, int]) -> str:
    factors = (f.strip() for f in text.split("*"))
    described = (f"Constant({f})" if f.isdigit() else f"Parameter({places[f]})" for f in factors)
    return f"Length(&[{', '.join(described)}])"
