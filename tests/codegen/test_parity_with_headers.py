"""The registry names what the headers of CUDA 11.8, 12.9 and 13 declare: no function less, none more."""

import re
from collections import defaultdict
from pathlib import Path

import pytest
from remotegpu_codegen import registry
from remotegpu_codegen.registry import Function, Parameter

from codegen import headers

REGISTRY = registry.load(Path(__file__).parents[2] / "remoting" / "registry")
GENERATED = [f for f in REGISTRY.driver if f.parameters]
NEWEST = headers.PINNED[-1]
DRIVER = ("cuda.h", "cudaGL.h", "cudaEGL.h", "cudaVDPAU.h", "cudaProfiler.h")
TYPEDEFS = (
    "cudaTypedefs.h", "cudaGLTypedefs.h", "cudaEGLTypedefs.h", "cudaVDPAUTypedefs.h", "cudaProfilerTypedefs.h",
)  # fmt: skip

# Declared, and yet in no libcuda.so: the only reasons for which a declared function is not exported.
NOT_EXPORTED = {"cuWGLGetDevice": "cudaGL.h declares it for Windows only"}

# Sizes in bytes of the C types that our kinds stand for; enumerations are four bytes.
C_TYPES = {
    "u8": r"unsigned char",
    "u16": r"unsigned short",
    "u32": r"unsigned int|cuuint32_t|CU(limit|func_cache|sharedconfig|function_attribute)",
    "i32": r"int",
    "u64": r"unsigned long long|cuuint64_t",
    "f32": r"float",
    "size": r"size_t",
    "dptr": r"CUdeviceptr",
    "stream": r"CUstream",
    "function": r"CUfunction",
    "event": r"CUevent",
    "launch_config": r"const CUlaunchConfig \*",
}


def declared() -> set[str]:
    files = ((version, file) for version in headers.PINNED for file in DRIVER)
    return {symbol for version, file in files for symbol in headers.driver_symbols(headers.pinned(version, file))}


def test_three_major_versions_are_pinned() -> None:
    versions = [headers.cuda_version(headers.pinned(version, "cuda.h")) for version in headers.PINNED]
    assert [version // 1000 for version in versions] == [11, 12, 13]
    assert [f"{v // 1000}.{v % 1000 // 10}" for v in versions] == headers.PINNED


def test_every_symbol_of_the_headers_and_no_other() -> None:
    assert NOT_EXPORTED.keys() <= declared()
    assert {symbol for f in REGISTRY.driver for symbol in f.symbols} == declared() - NOT_EXPORTED.keys()


@pytest.mark.parametrize("function", GENERATED, ids=lambda f: f.symbol)
def test_generated_functions_have_the_parameters_of_cuda_h(function: Function) -> None:
    theirs = headers.driver_symbols(headers.pinned(NEWEST, "cuda.h"))[function.symbol]
    assert len(function.parameters) == len(theirs)
    for ours, c in zip(function.parameters, theirs, strict=True):
        assert is_declared_as(ours, c), f"{ours} is declared as {c}"


def is_declared_as(parameter: Parameter, declaration: str) -> bool:
    star = r"\s*\*" if parameter.out else ""
    return re.fullmatch(rf"({C_TYPES[parameter.kind]}){star}\s*(?<=\W)\w+", declaration) is not None


def test_versions_are_those_of_the_typedef_headers() -> None:
    theirs: defaultdict[str, set[int]] = defaultdict(set)
    for version in headers.PINNED:
        for file in TYPEDEFS:
            for (name, variant), versions in headers.typedef_versions(headers.pinned(version, file)).items():
                if not variant and name not in NOT_EXPORTED:
                    theirs[name] |= versions
    ours: defaultdict[str, set[int]] = defaultdict(set)
    for function in REGISTRY.driver:
        ours[function.base].add(function.since)
    # For functions with per-thread variants the header also lists the version that brought these, 7.0.
    with_variants = {f.base for f in REGISTRY.driver if f.per_thread}
    assert ours.keys() == theirs.keys()
    for base, versions in ours.items():
        extra = theirs[base] - versions
        assert versions <= theirs[base]
        assert not extra or (base in with_variants and extra == {7000})


def test_every_symbol_of_nvml_h_and_no_other() -> None:
    theirs = (headers.nvml_symbols(headers.pinned(version, "nvml.h")) for version in headers.PINNED)
    assert {f.symbol for f in REGISTRY.nvml} == set().union(*theirs)
