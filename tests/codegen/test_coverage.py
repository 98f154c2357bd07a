"""Every function that is provided is called by a program that checks what it does."""

from pathlib import Path

import yaml
from remotegpu_codegen import registry
from remotegpu_codegen.registry import Class

# Between processes, which the programs of one process do not show: tests/remoting/test_sharing.py.
BETWEEN_PROCESSES = {
    "cuIpcCloseMemHandle", "cuIpcGetEventHandle", "cuIpcGetMemHandle", "cuIpcOpenEventHandle", "cuIpcOpenMemHandle",
    "cuIpcOpenMemHandle_v2",
}  # fmt: skip
FOLDER = Path(__file__).parents[2] / "remoting" / "registry"


def test_programs_call_every_function_that_is_provided() -> None:
    table = registry.load(FOLDER)
    provided = {f.symbol for f in table.driver if f.handling is not Class.REFUSED}
    nvml = {f.symbol for f in table.nvml if f.handling is not Class.REFUSED}
    called = {symbol for symbols in yaml.safe_load((FOLDER / "calls.yaml").read_text()).values() for symbol in symbols}
    assert len(provided) >= 200
    assert (provided | nvml) - BETWEEN_PROCESSES <= called, (
        "write programs in tests/compiled_programs that check them, then `make calls generate`"
    )
