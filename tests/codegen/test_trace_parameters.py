"""The tables of parameters, against the installed cuda.h and nvml.h: the same number, sizes, pointers and direction."""

import re
from pathlib import Path

import pytest
from remotegpu_codegen import parameters as tables
from remotegpu_codegen import registry
from remotegpu_codegen.parameters import HANDLES, OTHER_HANDLES, Parameter

from codegen import headers

FOLDER = Path(__file__).parents[2] / "remoting" / "registry"
TABLE = tables.load(FOLDER)
REGISTRY = registry.load(FOLDER)
DRIVER = {**TABLE.functions, **TABLE.unrecorded}
HEADER_LESS = {"cuProfilerStart", "cuProfilerStop"}

C_TYPES = {
    "u8": r"unsigned char",
    "u16": r"unsigned short",
    "u32": r"unsigned int|CU\w+|cuuint32_t|nvml\w+_t",
    "i32": r"int|CUdevice",
    "u64": r"unsigned long long|cuuint64_t|CUmemLocation",
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
    "array": r"CUarray",
    "texture": r"CUtexObject",
    "surface": r"CUsurfObject",
    "node": r"CUgraphNode",
    "exec": r"CUgraphExec",
    "user_object": r"CUuserObject",
    "conditional": r"CUgraphConditionalHandle",
    "nvml_device": r"nvmlDevice_t",
    "whole": r"CUipc(Event|Mem)Handle",
    "array_descriptor": r"(const )?CUDA_ARRAY_DESCRIPTOR \*",
    "array3d_descriptor": r"(const )?CUDA_ARRAY3D_DESCRIPTOR \*",
    "resource": r"(const )?CUDA_RESOURCE_DESC \*",
    "texture_descriptor": r"(const )?CUDA_TEXTURE_DESC \*",
    "view": r"(const )?CUDA_RESOURCE_VIEW_DESC \*",
    "kernel_node": r"(const )?CUDA_KERNEL_NODE_PARAMS_v1 \*",
    "kernel_node_v2": r"(const )?CUDA_KERNEL_NODE_PARAMS \*",
    "copy_node": r"(const )?CUDA_MEMCPY3D \*",
    "memset_node": r"(const )?CUDA_MEMSET_NODE_PARAMS \*",
    "host_node": r"(const )?CUDA_HOST_NODE_PARAMS \*",
    "allocation_node": r"CUDA_MEM_ALLOC_NODE_PARAMS \*",
    "update_result": r"CUgraphExecUpdateResultInfo \*",
    "instantiation": r"CUDA_GRAPH_INSTANTIATE_PARAMS \*",
    "new_node": r"CUgraphNodeParams \*",
    "node_parameters": r"CUgraphNodeParams \*",
    "graph_memory_attribute": r"void \*",
    "shareable": r"void \*",
    "range_attributes": r"void \*\*",
    "pci_v1": r"nvmlPciInfo_t \*",
    "pci_v2": r"nvmlPciInfo_t \*",
    "pci": r"nvmlPciInfo_t \*",
    "pci_ext": r"nvmlPciInfoExt_t \*",
    "memory_sizes": r"nvmlMemory_t \*",
    "memory_sizes_v2": r"nvmlMemory_v2_t \*",
    "utilization": r"nvmlUtilization_t \*",
    "temperature": r"nvmlTemperature_t \*",
    "fabric": r"nvmlGpuFabricInfo_t \*",
    "fabric_v": r"nvmlGpuFabricInfoV_t \*",
} | {kind: f"CU{kind}" for kind in HANDLES - {"physical", "pool", "link", "green"}}
# Whatever the function says; but a pointer that the driver only reads is const or the form says otherwise.
POINTERS = r"(const )?\w[\w ]* \*+(const )?\**|CUoccupancyB2DSize|CU\w+ \*"


@pytest.fixture(scope="module")
def declared() -> dict[str, list[str]]:
    return headers.driver_symbols(headers.installed("nvidia-cuda-runtime", "cuda.h"))


@pytest.mark.parametrize("symbol", sorted(DRIVER.keys() - HEADER_LESS))
def test_parameters_are_those_of_cuda_h(symbol: str, declared: dict[str, list[str]]) -> None:
    if symbol not in declared:
        pytest.skip("newer than the installed header")
    compare(DRIVER[symbol], declared[symbol])


def test_parameters_are_those_of_nvml_h() -> None:
    declared = headers.nvml_parameters(headers.installed("nvidia-nvml-dev", "nvml.h"))
    for symbol, ours in TABLE.nvml.items():
        compare(ours, declared[symbol])


def compare(ours: tuple[Parameter, ...], theirs: list[str]) -> None:
    assert len(ours) == len(theirs)
    for parameter, c in zip(ours, theirs, strict=True):
        assert is_declared_as(parameter, c), f"{parameter} is declared as {c}"


def is_declared_as(parameter: Parameter, declaration: str) -> bool:
    c = re.sub(r"\s*(\w+)$", "", re.sub(r"\s*\*\s*", " *", declaration)).replace("* *", "**").strip()
    kind = C_TYPES.get(parameter.kind, POINTERS)
    if parameter.out and parameter.kind in C_TYPES:
        # An answer is never const, but for what the driver keeps.
        return re.fullmatch(rf"({kind}) ?\*?", c) is not None and c.endswith("*")
    if not parameter.out and parameter.kind in {"u8", "u16", "u32", "i32", "u64", "size", *HANDLES, *OTHER_HANDLES}:
        return re.fullmatch(kind, c) is not None
    return re.fullmatch(kind, c) is not None


def test_all_that_is_provided_is_described_and_nothing_else_of_nvml() -> None:
    """A new function belongs into the table: the test of unwritten answers (tests/outputs) watches what is there."""
    refused = registry.Class.REFUSED
    assert {f.symbol for f in REGISTRY.driver if f.handling is not refused} - DRIVER.keys() == set()
    assert {f.symbol for f in REGISTRY.nvml if f.handling is not refused} == TABLE.nvml.keys()


def test_what_is_written_on_a_condition_names_a_parameter() -> None:
    for symbol, parameters in TABLE.all.items():
        for conditional in (p for p in parameters if p.when not in (None, "failure")):
            assert str(conditional.when).partition("=")[0] in {p.name for p in parameters if p.out}, symbol
