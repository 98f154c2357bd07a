"""Numbers and names of the generated functions, and the hash by which both ends know that their tables agree."""

from remotegpu_codegen.registry import Registry
from remotegpu_codegen.text import banner, constant, fingerprint


def table_hash(registry: Registry) -> str:
    """Changes exactly when a frame of one table could be misread with the other."""
    rows = sorted((f.number, f.symbol, f.handling.value, *map(str, f.parameters)) for f in registry.travelling)
    return fingerprint(repr(rows))


def rust(registry: Registry) -> str:
    functions = sorted(registry.travelling, key=lambda f: f.number)
    numbers = "\n".join(f"    pub const {constant(f.symbol)}: u32 = {f.number};" for f in functions)
    names = "\n".join(f'        function::{constant(f.symbol)} => Some("{f.symbol}"),' for f in functions)
    return f"""{banner("//!", functions)}

/// What the functions that both ends generate are called in the header of a frame.
pub mod function {{
{numbers}
}}

/// Both ends name theirs; they work together only if it is the same.
pub const TABLE_HASH: u64 = 0x{table_hash(registry)};

/// The CUDA function of a number, for messages to people.
pub fn function_name(number: u32) -> Option<&'static str> {{
    match number {{
{names}
        _ => None,
    }}
}}
"""
