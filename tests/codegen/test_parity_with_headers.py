"""The registry names what an installed cuda.h and nvml.h declare: no function less, none more, the same parameters."""

import re
from pathlib import Path

import pytest
from remotegpu_codegen import registry
from remotegpu_codegen.registry import Function, Parameter

from codegen import headers

REGISTRY = registry.load(Path(__file__).parents[2] / "remoting" / "registry")
GENERATED = [f for f in REGISTRY.driver if f.parameters]
RUNTIME, NVML = "nvidia-cuda-runtime", "nvidia-nvml-dev"

# cuda.h leaves the profiler to a header that only comes with the tools.
PROFILER = {f.symbol for f in REGISTRY.driver if f.group == "profiler"}

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


def declared() -> dict[str, list[str]]:
    return headers.driver_symbols(headers.installed(RUNTIME, "cuda.h"))


def known_to_header() -> list[Function]:
    """The functions that the installed header is not too old for."""
    version = headers.cuda_version(headers.installed(RUNTIME, "cuda.h"))
    return [f for f in REGISTRY.driver if f.since <= version]


def test_every_symbol_of_cuda_h_and_no_other() -> None:
    table = {symbol for f in known_to_header() for symbol in f.symbols} - PROFILER
    assert table == declared().keys()


@pytest.mark.parametrize("function", GENERATED, ids=lambda f: f.symbol)
def test_generated_functions_have_the_parameters_of_cuda_h(function: Function) -> None:
    theirs = declared()[function.symbol]
    assert len(function.parameters) == len(theirs)
    for ours, c in zip(function.parameters, theirs, strict=True):
        assert is_declared_as(ours, c), f"{ours} is declared as {c}"


def is_declared_as(parameter: Parameter, declaration: str) -> bool:
    star = r"\s*\*" if parameter.out else ""
    return re.fullmatch(rf"({C_TYPES[parameter.kind]}){star}\s*(?<=\W)\w+", declaration) is not None


def test_versions_are_those_of_the_typedef_headers() -> None:
    theirs = {
        name: versions
        for file in ("cudaTypedefs.h", "cudaProfilerTypedefs.h")
        for (name, variant), versions in headers.typedef_versions(headers.installed(RUNTIME, file)).items()
        if not variant
    }
    ours: dict[str, set[int]] = {}
    for function in known_to_header():
        ours.setdefault(function.base, set()).add(function.since)
    # For functions with per-thread variants the header also lists the version that brought these, 7.0.
    with_variants = {f.base for f in REGISTRY.driver if f.per_thread}
    assert ours.keys() == theirs.keys()
    for base, versions in ours.items():
        extra = theirs[base] - versions
        assert versions <= theirs[base]
        assert not extra or (base in with_variants and extra == {7000})


def test_every_symbol_of_nvml_h_and_no_other() -> None:
    assert {f.symbol for f in REGISTRY.nvml} == headers.nvml_symbols(headers.installed(NVML, "nvml.h"))
