"""The recorder's table of parameters, against the installed cuda.h: the same number, sizes, pointers and direction."""

import re
from pathlib import Path

import pytest
from remotegpu_codegen import registry, trace
from remotegpu_codegen.trace import HANDLES, Parameter

from codegen import headers

FOLDER = Path(__file__).parents[2] / "remoting" / "registry"
TABLE = trace.load(FOLDER)
HEADER_LESS = {"cuProfilerStart", "cuProfilerStop"}

C_TYPES = {
    "u8": r"unsigned char",
    "u16": r"unsigned short",
    "u32": r"unsigned int|CU\w+|cuuint32_t",
    "i32": r"int|CUdevice",
    "u64": r"unsigned long long|cuuint64_t",
    "size": r"size_t",
    "f32": r"float",
    "address": r"CUdeviceptr|void \*",
    "freed": r"CUdeviceptr|void \*",
    "memory": r"CUdeviceptr",
    "to": r"CUdeviceptr",
    "from": r"CUdeviceptr",
    "physical": r"CUmemGenericAllocationHandle",
    "pool": r"CUmemoryPool",
    "link": r"CUlinkState",
    "green": r"CUgreenCtx",
    "text": r"(const )?char( \*)?",
    "file": r"const char \*",
    "string": r"const char \*",
    "page_locked": r"void \*",
    "blob": r"void \*",
    "entry": r"void \*",
    "table": r"const void \*",
    "callback": r"CUhostFn|CUstreamCallback",
    "params": r"void \*\*",
    "extra": r"void \*\*",
    "launch": r"const CUlaunchConfig \*",
    "copy2d": r"const CUDA_MEMCPY2D \*",
    "copy3d": r"const CUDA_MEMCPY3D(_PEER)? \*",
    "location": r"(const )?CUmemLocation( \*)?",
    "allocation_properties": r"(const )?CUmemAllocationProp( \*)?",
    "pool_properties": r"const CUmemPoolProps \*",
    "copy_attributes": r"CUmemcpyAttributes \*",
} | {kind: f"CU{kind}" for kind in HANDLES - {"physical", "pool", "link", "green"}}
# Whatever the function says; but a pointer that the driver only reads is const or the form says otherwise.
POINTERS = r"(const )?\w[\w ]* \*+(const )?\**|CUoccupancyB2DSize|CU\w+ \*"


@pytest.fixture(scope="module")
def declared() -> dict[str, list[str]]:
    return headers.driver_symbols(headers.installed("nvidia-cuda-runtime", "cuda.h"))


@pytest.mark.parametrize("symbol", sorted(TABLE.functions.keys() - HEADER_LESS))
def test_parameters_are_those_of_cuda_h(symbol: str, declared: dict[str, list[str]]) -> None:
    if symbol not in declared:
        pytest.skip("newer than the installed header")
    ours, theirs = TABLE.functions[symbol], declared[symbol]
    assert len(ours) == len(theirs)
    for parameter, c in zip(ours, theirs, strict=True):
        assert is_declared_as(parameter, c), f"{parameter} is declared as {c}"


def is_declared_as(parameter: Parameter, declaration: str) -> bool:
    c = re.sub(r"\s*(\w+)$", "", re.sub(r"\s*\*\s*", " *", declaration)).replace("* *", "**").strip()
    kind = C_TYPES.get(parameter.kind, POINTERS)
    if parameter.out and parameter.kind in C_TYPES:
        # An answer is never const, but for what the driver keeps.
        return re.fullmatch(rf"({kind}) ?\*?", c) is not None and c.endswith("*")
    if not parameter.out and parameter.kind in {"u8", "u16", "u32", "i32", "u64", "size", *HANDLES}:
        return re.fullmatch(kind, c) is not None
    return re.fullmatch(kind, c) is not None


def test_all_that_the_client_provides_is_described_or_known_not_to_be() -> None:
    """A new function belongs into the table; these and those of graphs and IPC are recorded with their codes alone."""
    provided = {f.symbol for f in registry.load(FOLDER).driver if f.handling is not registry.Class.REFUSED}
    provided = {name for name in provided if not re.search("Graph|Capture|cuUserObject|cuIpc|Shareable", name)}
    assert provided - TABLE.functions.keys() == {
        "cuLibraryGetManaged",
        "cuLibraryGetUnifiedFunction",
        "cuMemAdvise",
        "cuMemAdvise_v2",
        "cuMemAllocManaged",
        "cuMemDiscardAndPrefetchBatchAsync",
        "cuMemDiscardBatchAsync",
        "cuMemPrefetchAsync",
        "cuMemPrefetchAsync_v2",
        "cuMemPrefetchBatchAsync",
        "cuMemRangeGetAttribute",
        "cuMemRangeGetAttributes",
        "cuMemcpy3DBatchAsync",
        "cuMemcpy3DBatchAsync_v2",
        "cuMemcpy3DWithAttributesAsync",
        "cuMemcpyBatchAsync",
        "cuMemcpyBatchAsync_v2",
        "cuStreamAttachMemAsync",
        "cuStreamBatchMemOp_v2",
        "cuTensorMapEncodeIm2col",
        "cuTensorMapEncodeIm2colWide",
        "cuArray3DCreate_v2",
        "cuArray3DGetDescriptor_v2",
        "cuArrayCreate_v2",
        "cuArrayDestroy",
        "cuArrayGetDescriptor_v2",
        "cuMemcpyAtoA_v2",
        "cuMemcpyAtoD_v2",
        "cuMemcpyAtoHAsync_v2",
        "cuMemcpyAtoH_v2",
        "cuMemcpyDtoA_v2",
        "cuMemcpyHtoAAsync_v2",
        "cuMemcpyHtoA_v2",
        "cuSurfObjectCreate",
        "cuSurfObjectDestroy",
        "cuSurfObjectGetResourceDesc",
        "cuTexObjectCreate",
        "cuTexObjectDestroy",
        "cuTexObjectGetResourceDesc",
        "cuTexObjectGetResourceViewDesc",
        "cuTexObjectGetTextureDesc",
        "cuTensorMapSetAllocationClass",
    }
