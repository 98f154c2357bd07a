"""Generates the table of cuGetProcAddress (`driverapi`)."""

from remotegpu_codegen.registry import Function, Registry
from remotegpu_codegen.text import banner


def rust(registry: Registry) -> str:
    rows = sorted(registry.driver, key=lambda f: (f.base.encode(), f.since))
    body = "\n".join(map(_row, rows))
    return f"""{banner("//!", body)}

use crate::proc_address::ProcEntry;

#[rustfmt::skip]
pub static PROC_TABLE: &[ProcEntry] = &[
{body}
];
"""


def _row(function: Function) -> str:
    variant = f'Some("{function.per_thread_symbol}")' if function.per_thread else "None"
    refused = f'Some("{function.reason}")' if function.reason else "None"
    return (
        f'    ProcEntry {{ base: "{function.base}", since: {function.since}, '
        f'symbol: "{function.symbol}", per_thread: {variant}, refused: {refused} }},'
    )
