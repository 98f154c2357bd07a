"""Generates the client's stubs of functions, and its refusals."""

from collections.abc import Iterable

from remotegpu_codegen import kinds
from remotegpu_codegen.registry import Class, Function, Parameter, Registry
from remotegpu_codegen.text import banner, constant

INDENT = " " * 8


def rust(registry: Registry) -> str:
    stubs = [f for f in registry.driver if f.handling is Class.SYNC and not f.client_by_hand]
    asking = "\n".join(_stub(f) for f in stubs)
    refused = "\n".join(_refused(f) for f in registry.driver if f.handling is Class.REFUSED)
    return f"""{banner("//!", registry.driver)}

use crate::abi::launch;
use crate::boundary;
use crate::call::Call;
use driverapi::types::{{{", ".join(_imported_types(stubs))}}};
use protocol::function;

crate::exports! {{
{asking}
}}

// What is not provided needs no parameters: the caller of a C function clears them away.
crate::exports! {{
{refused}
}}
"""


def _imported_types(functions: Iterable[Function]) -> list[str]:
    used = {_client_type(p) for f in functions for p in f.parameters if p.kind not in kinds.SCALARS}
    return sorted(name.removeprefix("*const ") for name in used)


def _stub(function: Function) -> str:
    return f"""    fn {function.symbol}({_signature(function)}) {{
{_body(function)}
    }}"""


def _refused(function: Function) -> str:
    return "\n".join(f'    fn {symbol}() {{ boundary::refused("{function.symbol}") }}' for symbol in function.symbols)


def _signature(function: Function) -> str:
    return ", ".join(f"{p.name}: {_client_type(p)}" for p in function.parameters)


def _client_type(parameter: Parameter) -> str:
    if parameter.kind in kinds.HANDLES:
        return kinds.HANDLES[parameter.kind].client
    if parameter.kind in kinds.STRUCTURES:
        return kinds.STRUCTURES[parameter.kind].client
    client = kinds.SCALARS[parameter.kind].client
    return f"*mut {client}" if parameter.out else client


def _body(function: Function) -> str:
    statements = [_start(function), *_fields(function)]
    output = function.output
    if output is None:
        statements.append("call.reply().map(drop)")
    else:
        scalar = kinds.SCALARS[output.kind]
        value = scalar.from_wire(f"call.reply()?.decode::<{scalar.wire}>()?")
        statements.append(f"boundary::write({output.name}, {value})")
    return "\n".join(INDENT + s for s in statements)


def _start(function: Function) -> str:
    number = f"function::{constant(function.wire or function.symbol)}"
    mutable = "mut " if _fields(function) else ""
    of_function = function.of_kind(kinds.FUNCTION)
    start = f"Call::on_function({number}, {of_function.name})" if of_function else f"Call::in_context({number})"
    return f"let {mutable}call = {start}?;"


def _fields(function: Function) -> list[str]:
    return [field for p in function.inputs if (field := _field(p))]


def _field(parameter: Parameter) -> str | None:
    if parameter.kind in kinds.SCALARS:
        return f"call.put(&{kinds.SCALARS[parameter.kind].to_wire(parameter.name)});"
    if parameter.kind in kinds.STRUCTURES:
        return f"call.put(&{kinds.STRUCTURES[parameter.kind].reader}({parameter.name})?);"
    if parameter.kind == kinds.EVENT:
        return f"call.event({parameter.name})?;"
    return None


def nvml_rust(registry: Registry) -> str:
    refused = "\n".join(f"    {f.symbol}" for f in registry.nvml if f.handling is Class.REFUSED)
    return f"""{banner("//!", registry.nvml)}

use driverapi::nvml::{{NVML_ERROR_NOT_SUPPORTED, nvmlReturn_t}};
use driverapi::report;

macro_rules! not_supported {{
    ($($name:ident)*) => {{$(
        // A C function that reads no parameter needs none: the caller clears them away.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> nvmlReturn_t {{
            report::refused_nvml(stringify!($name));
            NVML_ERROR_NOT_SUPPORTED
        }}
    )*}};
}}

not_supported! {{
{refused}
}}
"""


def exports(registry: Registry) -> str:
    return "\n".join((banner("#", registry.exports), *registry.exports, ""))
