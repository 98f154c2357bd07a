"""Generates the recorder's table (`trace`): all symbols of the driver, with their parameters from `parameters.yaml`."""

from collections.abc import Mapping

from remotegpu_codegen.parameters import HANDLES, Parameter, Parameters, Structure
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


def rust(registry: Registry, parameters: Parameters) -> str:
    described = parameters.functions.keys() | parameters.unrecorded.keys()
    unknown = described - {f.symbol for f in registry.driver}
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
crate::stub::functions! {{
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
        fields = ", ".join(f'({f.offset}, "{f.name}", {_element(f.kind, structures)})' for f in structure.fields)
        return f"Structure({structure.size}, &[{fields}])"
    return PLAIN[kind]


def _length(text: str, places: Mapping[str, int]) -> str:
    factors = (f.strip() for f in text.split("*"))
    described = (f"Constant({f})" if f.isdigit() else f"Parameter({places[f]})" for f in factors)
    return f"Length(&[{', '.join(described)}])"
