"""Reads names, parameters and versions of functions out of installed CUDA headers, without a compiler."""

import functools
import re
from importlib import metadata
from pathlib import Path

import pytest
from support.system import ROOT

# The versions that `make headers` installs, each from the wheels that its file in `pinned/` names.
PINNED = sorted(file.stem for file in (Path(__file__).parent / "pinned").glob("*.txt"))

PER_THREAD = re.compile(r"__CUDA_API_PT([DS])([SZ])\((\w+)\)")
TOKENS = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+(?P<defined>cu[A-Z]\w*)[ \t]+(?P<value>\S+)"
    r"|^[ \t]*#[ \t]*undef[ \t]+(?P<undefined>cu[A-Z]\w*)"
    r"|\bCUresult\s+CUDAAPI\s+(?P<declared>cu[A-Z]\w*)\s*\((?P<parameters>[^;{]*)\)\s*;",
    re.MULTILINE,
)
TYPEDEF = re.compile(r"\*PFN_(cu[A-Z]\w*?)_v(\d+)(_pt[ds][sz])?\)")
NVML_FUNCTION = re.compile(r"\bDECLDIR\b[\s\w*]*?\b(nvml[A-Z]\w*)\s*\(([^;{]*)\)\s*;")


def installed(distribution: str, file: str) -> str:
    """The text of a file of an installed wheel; the test is skipped where the wheel is not."""
    return installed_path(distribution, file).read_text()


def installed_path(distribution: str, file: str) -> Path:
    try:
        files = metadata.files(distribution) or []
    except metadata.PackageNotFoundError:
        files = []
    found = next((f for f in files if f.name == file), None)
    if found is None:
        pytest.skip(f"{file} comes with the wheel {distribution}, which is not installed")
    return Path(str(found.locate()))


@functools.cache
def pinned(version: str, file: str) -> str:
    """The text of a header of one of the pinned CUDA versions."""
    folder = ROOT / "target" / "headers" / version
    found = [path for path in folder.rglob(file) if path.parent.name == "include"]
    assert len(found) == 1, f"{folder} has {len(found)} files {file}: run `make headers`"
    return found[0].read_text()


def without_comments(text: str) -> str:
    return re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.DOTALL)


def cuda_version(header: str) -> int:
    version = re.search(r"^#define CUDA_VERSION (\d+)", header, re.MULTILINE)
    assert version is not None
    return int(version[1])


def driver_symbols(header: str) -> dict[str, list[str]]:
    """Exported symbols of cuda.h, per-thread variants included, with their parameters.

    A declaration means what the macros above it make of its name. Old ABIs are declared at the end,
    where these macros are undefined again.
    """
    macros: dict[str, str] = {}
    symbols: dict[str, list[str]] = {}
    for token in TOKENS.finditer(without_comments(header)):
        if defined := token["defined"]:
            macros[defined] = token["value"]
        elif undefined := token["undefined"]:
            macros.pop(undefined, None)
        else:
            for symbol in _meanings(token["declared"], macros):
                symbols.setdefault(symbol, _split(token["parameters"]))
    return symbols


def _meanings(name: str, macros: dict[str, str]) -> list[str]:
    suffix = ""
    while value := macros.get(name):
        if variant := PER_THREAD.fullmatch(value):
            suffix, value = f"_pt{variant[1]}{variant[2]}".lower(), variant[3]
        if value == name:
            break
        name = value
    return [name, name + suffix] if suffix else [name]


def _split(parameters: str) -> list[str]:
    listed = [" ".join(p.split()) for p in parameters.split(",")]
    return [] if listed in ([""], ["void"]) else listed


def typedef_versions(header: str) -> dict[tuple[str, str], set[int]]:
    """Versions by base name and variant (`''`, `ptsz` or `ptds`), from cudaTypedefs.h and its relatives."""
    versions: dict[tuple[str, str], set[int]] = {}
    for name, version, variant in TYPEDEF.findall(header):
        versions.setdefault((name, variant.lstrip("_")), set()).add(int(version))
    return versions


def nvml_symbols(header: str) -> set[str]:
    return set(nvml_parameters(header))


def nvml_parameters(header: str) -> dict[str, list[str]]:
    return {name: _split(parameters) for name, parameters in NVML_FUNCTION.findall(without_comments(header))}


def enumeration(header: str, name: str) -> dict[str, int]:
    """The values of an enumeration by their names."""
    plain = re.sub(r"^[ \t]*#[^\n]*", " ", without_comments(header), flags=re.MULTILINE)
    body = re.search(rf"typedef enum {name}_enum\s*\{{(.*?)\}}", plain, re.DOTALL)
    assert body is not None, name
    values: dict[str, int] = {}
    following = 0
    for item in filter(None, map(str.strip, body[1].split(","))):
        key, _, said = map(str.strip, item.partition("="))
        number = following if not said else values[said] if said in values else int(said, 0)
        values[key], following = number, number + 1
    return values
