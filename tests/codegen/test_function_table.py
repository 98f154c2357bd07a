"""The rules of the registry: what it refuses, and what follows from an entry."""

from typing import Any

import pytest
from remotegpu_codegen import client, numbers, sources, worker
from remotegpu_codegen.registry import (
    Class,
    Parameter,
    Registry,
    RegistryError,
    Rule,
    check,
    driver_functions,
)
from remotegpu_codegen.report import render
from remotegpu_codegen.text import constant

FILL = {
    "number": 7,
    "symbol": "cuFillAsync_v2",
    "since": 3020,
    "per_thread": "ptsz",
    "class": "async",
    "client": "handwritten",
    "parameters": ["dptr address", "u8 value", "size count", "stream stream"],
}
FILL_NOW = FILL | {"number": 8, "symbol": "cuFill", "per_thread": None, "wire": "cuFillAsync_v2", "parameters": []}
ASK = {
    "number": 9,
    "symbol": "cuAsk",
    "since": 3020,
    "class": "sync",
    "parameters": ["out size answer", "function kernel", "i32 blocks"],
}


def table(*entries: dict[str, Any]) -> Registry:
    registry = Registry(driver_functions({"a group": list(entries)}), ())
    check(registry)
    return registry


def test_an_entry_is_read() -> None:
    fill, now = table(FILL, FILL_NOW).driver
    assert (fill.base, fill.symbols) == ("cuFillAsync", ("cuFillAsync_v2", "cuFillAsync_v2_ptsz"))
    assert fill.parameters[2] == Parameter("size", "count")
    assert [p.name for p in now.parameters] == ["address", "value", "count"]
    assert (fill.travels, now.travels) == (True, False)


@pytest.mark.parametrize(
    ("entries", "rule", "name"),
    [
        ([FILL, FILL | {"symbol": "cuOther"}], Rule.UNIQUE, "number 7"),
        ([FILL, FILL | {"number": 8}], Rule.UNIQUE, "symbol cuFillAsync_v2"),
        ([FILL, FILL | {"number": 8, "symbol": "cuFillAsync"}], Rule.UNIQUE, "cuFillAsync"),
        ([FILL | {"number": 0x8000}], Rule.NUMBER, "cuFillAsync_v2"),
        ([FILL | {"class": "fast"}], None, "fast"),
        ([FILL | {"colour": "red"}], None, "colour"),
        ([FILL | {"parameters": ["colour c"]}], None, "colour c"),
        ([FILL | {"parameters": ["out u32 answer"]}], Rule.NO_OUTPUT, "cuFillAsync_v2"),
        ([ASK | {"parameters": ["out u32 a", "out u32 b"]}], Rule.ONE_OUTPUT, "cuAsk"),
        ([{**FILL, "client": None}], Rule.CLIENT, "cuFillAsync_v2"),
        ([ASK | {"parameters": ["out size answer", "stream stream"]}], Rule.ORDER, "cuAsk"),
        ([ASK | {"class": "refused"}], Rule.REASON, "cuAsk"),
        ([ASK | {"class": "local"}], Rule.TRAVELS, "cuAsk"),
        ([FILL_NOW], Rule.WIRE, "cuFill"),
        ([FILL, FILL_NOW | {"class": "sync"}], Rule.WIRE, "cuFill"),
    ],
)
def test_contradictions_are_refused(entries: list[dict[str, Any]], rule: Rule | None, name: str) -> None:
    with pytest.raises(RegistryError, match=rf"\b{name}\b") as refused:
        table(*entries)
    assert refused.value.rule is rule


def test_a_number_is_never_given_to_another_symbol() -> None:
    lock = {7: "cuGone", 9: "cuAsk"}
    assert numbers.extend(lock, table(ASK).driver) == lock
    with pytest.raises(RegistryError, match=r"\b7\b.*\bcuGone\b"):
        numbers.extend(lock, table(FILL).driver)
    with pytest.raises(RegistryError, match=r"\b9\b"):
        numbers.extend(lock, table(ASK | {"number": 10}).driver)


def test_the_lock_survives_being_written() -> None:
    lock = {7: "cuGone", 9: "cuAsk"}
    assert numbers.parse(numbers.render(lock)) == lock


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("cuMemsetD2D8Async", "CU_MEMSET_D2D8_ASYNC"),
        ("cuCtxResetPersistingL2Cache", "CU_CTX_RESET_PERSISTING_L2_CACHE"),
        ("cuEventElapsedTime_v2", "CU_EVENT_ELAPSED_TIME_V2"),
    ],
)
def test_constants_are_named_as_rust_names_them(symbol: str, name: str) -> None:
    assert constant(symbol) == name


def test_both_ends_of_a_function_agree_on_the_fields() -> None:
    registry = table(FILL, FILL_NOW, ASK)
    stubs, dispatch = client.rust(registry), worker.rust(registry)
    assert (
        """\
    fn cuAsk(answer: *mut usize, kernel: CUfunction, blocks: i32) {
        let mut call = Call::on_function(function::CU_ASK, kernel)?;
        call.put(&blocks);
        boundary::write(answer, call.reply()?.decode::<u64>()? as usize)
    }"""
        in stubs
    )
    assert (
        """\
        function::CU_ASK => {
            let kernel_module: u64 = args.get()?;
            let kernel_index: u32 = args.get()?;
            let blocks: i32 = args.get()?;
            finish(args)?;
            let kernel = objects.function(kernel_module, kernel_index)?;
            let run = functions.cuAsk.ok_or(CUDA_ERROR_NOT_SUPPORTED)?;
            let mut answer = usize::default();
            check(unsafe { run(&mut answer, kernel, blocks) })?;
            out.put(&(answer as u64));
        }"""
        in dispatch
    )
    assert "cuFill" not in stubs, "it is written by hand"
    assert "cuFill:" not in dispatch


def test_exports_are_found_in_rust_sources() -> None:
    source = """
    crate::exports! { fn cuOne(a: u32) { helper(cuNotThis(a)) } }
    crate::stream_exports! { fn cuTwo | cuTwo_ptsz(a: u32) |default| { } }
    #[unsafe(no_mangle)] pub extern "C" fn nvmlThree() -> u32 { 0 }
    fn ordinary() {}
    """
    assert sources.exported(source) == {"cuOne", "cuTwo", "cuTwo_ptsz", "nvmlThree"}
    assert sources.exported("fn cuInternal(a: u32) {}") == set()


def test_the_report_names_what_table_and_sources_do_not_agree_on() -> None:
    local = {"number": 20, "symbol": "cuHere", "since": 2000, "class": Class.LOCAL.value}
    agreed = render(table(ASK, local), {"cuHere"}, {"cuHere"}, {"a.c": ["cuHere"]})
    assert "in the client's sources" not in agreed.lower()
    assert "| a group | 2 | 2 | 1 |" in agreed
    assert "| a group | `cuHere` | `a.c` |" in agreed
    assert "| a group | `cuAsk` | **none** |" in agreed
    differing = render(table(ASK, local), {"cuThere"}, set(), {})
    assert "not in the client's sources\n\n`cuHere`" in differing
    assert "not expected by the table\n\n`cuThere`" in differing
