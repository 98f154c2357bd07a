"""Generates the worker's side of functions: it decodes a frame, calls the real driver and encodes the output."""

from remotegpu_codegen import kinds
from remotegpu_codegen.registry import Class, Function, Parameter, Registry
from remotegpu_codegen.text import banner, constant


def functions(registry: Registry) -> str:
    """Generates the table of driver functions that the dispatch calls."""
    called = sorted(registry.travelling, key=lambda f: f.number)
    symbols = "\n".join(f'    {f.symbol} = c"{f.symbol}" ({_driver_types(f)});' for f in called)
    return f"""{banner("//!", called)}

use super::Raw;
use driverapi::types::CUlaunchConfig;
use std::ffi::CStr;
use std::mem::transmute;

macro_rules! functions {{
    ($($name:ident = $symbol:literal ($($type:ty),*);)*) => {{
        /// The driver's functions; `None` where the loaded library has no such symbol.
        #[allow(non_snake_case)]
        #[derive(Clone, Default)]
        pub struct Functions {{
            $(pub $name: Option<unsafe extern "C" fn($($type),*) -> u32>,)*
        }}

        impl Functions {{
            /// # Safety
            /// For each symbol, `find` must return null or a function of CUDA's signature for that symbol, callable as
            /// long as the result is used.
            pub unsafe fn load(find: &mut dyn FnMut(&CStr) -> Raw) -> Functions {{
                // SAFETY: the caller's promise; a null pointer is `None` of an optional function pointer.
                unsafe {{
                    Functions {{
                        $($name: transmute::<Raw, Option<unsafe extern "C" fn($($type),*) -> u32>>(find($symbol)),)*
                    }}
                }}
            }}
        }}
    }};
}}

functions! {{
{symbols}
}}
"""


def rust(registry: Registry) -> str:
    functions = sorted(registry.travelling, key=lambda f: f.number)
    classes = "\n".join(_class_arm(functions, c) for c in (Class.ASYNC, Class.SYNC))
    arms = "\n".join(f"        function::{constant(f.symbol)} => {_body(f)}" for f in functions)
    return f"""{banner("//!", functions)}

use crate::session::calls::Objects;
use crate::driver::{{Functions, Raw}};
use crate::code::launch_shape::AskedLaunch;
use driverapi::errors::*;
use protocol::{{DecodeError, LaunchShape, Reader, Writer, function}};

pub enum Class {{
    /// Nothing is answered; an error is reported late.
    Async,
    Sync,
}}

pub fn class(number: u32) -> Option<Class> {{
    match number {{
{classes}
        _ => None,
    }}
}}

enum Failure {{
    Malformed(DecodeError),
    Result(u32),
}}

impl From<DecodeError> for Failure {{
    fn from(error: DecodeError) -> Failure {{
        Failure::Malformed(error)
    }}
}}

impl From<u32> for Failure {{
    fn from(result: u32) -> Failure {{
        Failure::Result(result)
    }}
}}

/// Calls a function in the order of `stream`, if it has one. Returns the driver's result, or the reason why the driver
/// could not be called; `out` gets the output of a successful call.
///
/// # Errors
/// If the fields are not those of the function.
pub fn call(
    number: u32,
    functions: &Functions,
    objects: &dyn Objects,
    stream: Raw,
    args: &mut Reader<'_>,
    out: &mut Writer,
) -> Result<u32, DecodeError> {{
    match dispatch(number, functions, objects, stream, args, out) {{
        Ok(()) => Ok(0),
        Err(Failure::Result(result)) => Ok(result),
        Err(Failure::Malformed(error)) => Err(error),
    }}
}}

fn finish(args: &Reader<'_>) -> Result<(), DecodeError> {{
    if args.remaining() == 0 {{ Ok(()) }} else {{ Err(DecodeError::Trailing) }}
}}

fn check(result: u32) -> Result<(), Failure> {{
    if result == 0 {{ Ok(()) }} else {{ Err(Failure::Result(result)) }}
}}

fn dispatch(
    number: u32,
    functions: &Functions,
    objects: &dyn Objects,
    stream: Raw,
    args: &mut Reader<'_>,
    out: &mut Writer,
) -> Result<(), Failure> {{
    // SAFETY of the calls: the function has the signature of its symbol (`Functions::load`), handles are live
    // (`Objects`), outputs are locals. Addresses and sizes are the tenant's; the driver checks them.
    match number {{
{arms}
        _ => return Err(Failure::Malformed(DecodeError::Invalid)),
    }}
    Ok(())
}}
"""


def _class_arm(functions: list[Function], handling: Class) -> str:
    numbers = "\n        | ".join(f"function::{constant(f.symbol)}" for f in functions if f.handling is handling)
    return f"        {numbers} => Some(Class::{handling.value.capitalize()}),"


def _driver_type(parameter: Parameter) -> str:
    if parameter.kind in kinds.HANDLES:
        return "Raw"
    if parameter.kind in kinds.STRUCTURES:
        return kinds.STRUCTURES[parameter.kind].driver
    driver = kinds.SCALARS[parameter.kind].driver
    return f"*mut {driver}" if parameter.out else driver


def _driver_types(function: Function) -> str:
    return ", ".join(map(_driver_type, function.parameters))


def _body(function: Function) -> str:
    output = function.output
    lines = [
        *_reads(function),
        "finish(args)?;",
        *_lookups(function),
        f"let run = functions.{function.symbol}.ok_or(CUDA_ERROR_NOT_SUPPORTED)?;",
    ]
    if output:
        lines.append(f"let mut {output.name} = {kinds.SCALARS[output.kind].driver}::default();")
    arguments = ", ".join(map(_argument, function.parameters))
    lines.append(f"check(unsafe {{ run({arguments}) }})?;")
    if output:
        lines.append(f"out.put(&{kinds.SCALARS[output.kind].from_driver(output.name)});")
    return "\n".join(("{", *(" " * 12 + line for line in lines), " " * 8 + "}"))


def _reads(function: Function) -> list[str]:
    if function.in_current_context:
        reads = [("context", "u64")]
    elif of_function := function.of_kind(kinds.FUNCTION):
        reads = _id_fields(of_function)
    else:
        reads = []
    for p in function.inputs:
        if p.kind in kinds.SCALARS:
            reads.append((p.name, kinds.SCALARS[p.kind].wire))
        elif p.kind in kinds.STRUCTURES:
            reads.append((p.name, kinds.STRUCTURES[p.kind].wire))
        elif p.kind == kinds.EVENT:
            reads += _id_fields(p)
    return [f"let {name}: {wire} = args.get()?;" for name, wire in reads]


def _id_fields(parameter: Parameter) -> list[tuple[str, str]]:
    return [(f"{parameter.name}_{suffix}", wire) for suffix, wire in kinds.HANDLES[parameter.kind].fields]


def _lookups(function: Function) -> list[str]:
    if function.in_current_context:
        return ["objects.enter(context)?;"]
    found = [
        f"let {p.name} = objects.{p.kind}({', '.join(name for name, _ in _id_fields(p))})?;"
        for p in function.inputs
        if p.kind in (kinds.FUNCTION, kinds.EVENT)
    ]
    rebuilt = [
        f"let mut {p.name} = {kinds.STRUCTURES[p.kind].rebuilder}::new({p.name})?;"
        for p in function.inputs
        if p.kind in kinds.STRUCTURES
    ]
    return found + rebuilt


def _argument(parameter: Parameter) -> str:
    if parameter.kind == kinds.STREAM:
        return "stream"
    if parameter.kind in kinds.HANDLES:
        return parameter.name
    if parameter.out:
        return f"&mut {parameter.name}"
    if parameter.kind in kinds.STRUCTURES:
        return f"&{parameter.name}.raw()"
    return kinds.SCALARS[parameter.kind].to_driver(parameter.name)
