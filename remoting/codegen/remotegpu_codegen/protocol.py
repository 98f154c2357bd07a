"""Generates numbers and names of the generated functions."""

from remotegpu_codegen.registry import Registry
from remotegpu_codegen.text import banner, constant


def rust(registry: Registry) -> str:
    functions = sorted(registry.travelling, key=lambda f: f.number)
    numbers = "\n".join(f"    pub const {constant(f.symbol)}: u32 = {f.number};" for f in functions)
    names = "\n".join(f'        function::{constant(f.symbol)} => Some("{f.symbol}"),' for f in functions)
    return f"""{banner("//!", functions)}

/// Numbers in the header of a frame for the functions that both ends generate.
pub mod function {{
{numbers}
}}

/// The CUDA function of a number, for messages to people.
pub fn function_name(number: u32) -> Option<&'static str> {{
    match number {{
{names}
        _ => None,
    }}
}}
"""
