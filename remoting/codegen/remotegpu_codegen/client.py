"""The client's ends of generated functions, and the answers of refused ones."""

from collections.abc import Iterable

from remotegpu_codegen import kinds
from remotegpu_codegen.registry import Class, Function, Parameter, Registry
from remotegpu_codegen.text import banner, constant

INDENT = " " * 8


def rust(registry: Registry) -> str:
    stubs = [f for f in registry.driver if f.handling in (Class.ASYNC, Class.SYNC) and not f.client_by_hand]
    paired = "\n".join(_paired(f) for f in stubs if f.per_thread)
    single = "\n".join(_single(f) for f in stubs if not f.per_thread)
    refused = "\n".join(_refused(f) for f in registry.driver if f.handling is Class.REFUSED)
    return f"""{banner("//!", registry.driver)}

use crate::abi::launch;
use crate::call::{{self, Call}};
use crate::copy::Timing;
use driverapi::types::{{{", ".join(_imported_types(stubs))}}};
use protocol::function;
use std::ptr;

crate::stream_exports! {{
{paired}
}}

crate::exports! {{
{single}
}}

// What is not provided needs no parameters: the caller of a C function clears them away.
crate::exports! {{
{refused}
}}
"""


def _imported_types(functions: Iterable[Function]) -> list[str]:
    used = {_client_type(p) for f in functions for p in f.parameters if p.kind not in kinds.SCALARS}
    return sorted(name.removeprefix("*const ") for name in used)


def _paired(function: Function) -> str:
    return f"""    fn {function.symbol} | {function.per_thread_symbol}({_signature(function)}) |default| {{
{_body(function)}
    }}"""


def _single(function: Function) -> str:
    return f"""    fn {function.symbol}({_signature(function)}) {{
{_body(function)}
    }}"""


def _refused(function: Function) -> str:
    return "\n".join(f'    fn {symbol}() {{ call::refused("{function.symbol}") }}' for symbol in function.symbols)


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
    statements = [_start(function), *_checks(function), *_fields(function)]
    output = function.output
    if function.handling is Class.ASYNC:
        statements.append("call.send()")
    elif output is None:
        statements.append("call.reply().map(drop)")
    else:
        scalar = kinds.SCALARS[output.kind]
        value = scalar.from_wire(f"call.reply()?.decode::<{scalar.wire}>()?")
        statements.append(f"call::write({output.name}, {value})")
    return "\n".join(INDENT + s for s in statements)


def _start(function: Function) -> str:
    number = f"function::{constant(function.wire or function.symbol)}"
    mutable = "mut " if _fields(function) else ""
    of_function, stream = function.of_kind(kinds.FUNCTION), function.of_kind(kinds.STREAM)
    if stream or function.on_default_stream:
        default = "default" if function.per_thread else "call::LEGACY"
        start = f"Call::on_stream({number}, {stream.name if stream else 'ptr::null_mut()'}, {default})"
    elif of_function:
        start = f"Call::on_function({number}, {of_function.name})"
    else:
        start = f"Call::in_context({number})"
    return f"let {mutable}call = {start}?;"


def _checks(function: Function) -> list[str]:
    """What is written is a fill: the one parameter that does not say where is what the memory is filled with."""
    timing = "Asynchronous" if function.of_kind(kinds.STREAM) else "Synchronous"
    checks = []
    for address, e in ((p.name, p.extent) for p in function.inputs if p.extent):
        where = (address, e.count, e.rows, e.pitch)
        (value,) = (p.name for p in function.inputs if p.kind in kinds.SCALARS and p.name not in where)
        rows = f"({e.count}, {e.rows or '1'}, {e.pitch or '0'})"
        checks.append(f"let {address} = call.fills({address}, &{value}.to_le_bytes(), {rows}, Timing::{timing})?;")
    return checks


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

macro_rules! not_supported {{
    ($($name:ident)*) => {{$(
        // A C function that reads no parameter needs none: the caller clears them away.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> nvmlReturn_t {{
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
