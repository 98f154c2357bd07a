"""The structures of the tables of parameters, against the installed headers: size, and all fields but padding."""

import re
import subprocess
from pathlib import Path

import pytest
from remotegpu_codegen import parameters
from remotegpu_codegen.parameters import HANDLES, OTHER_HANDLES, Structure

from codegen import headers

TABLE = parameters.load(Path(__file__).parents[2] / "remoting" / "registry")
CUDA, NVML = ("nvidia-cuda-runtime", "cuda.h"), ("nvidia-nvml-dev", "nvml.h")
SIZES = {"u8": 1, "u16": 2, "u32": 4, "i32": 4, "f32": 4, "u64": 8, "size": 8, "address": 8, "host": 8}
SIZES |= dict.fromkeys(HANDLES | OTHER_HANDLES, 8)
# By the C type: the structures that have one.
DRIVER = {
    "CUmemAllocationProp": "allocation_properties",
    "CUmemLocation": "location",
    "CUmemAccessDesc": "access",
    "CUmemPoolProps": "pool_properties",
    "CUmemcpyAttributes": "copy_attributes",
    "CUaccessPolicyWindow": "access_window",
    "CUlaunchMemSyncDomainMap": "domains",
    "CUDA_ARRAY_DESCRIPTOR": "array_descriptor",
    "CUDA_ARRAY3D_DESCRIPTOR": "array3d_descriptor",
    "CUDA_RESOURCE_DESC": "resource",
    "CUDA_TEXTURE_DESC": "texture_descriptor",
    "CUDA_RESOURCE_VIEW_DESC": "view",
    "CUDA_KERNEL_NODE_PARAMS_v1": "kernel_node",
    "CUDA_KERNEL_NODE_PARAMS_v2": "kernel_node_v2",
    "CUDA_MEMCPY3D": "copy_node",
    "CUDA_MEMSET_NODE_PARAMS_v1": "memset_node",
    "CUDA_HOST_NODE_PARAMS_v1": "host_node",
    "CUDA_MEM_ALLOC_NODE_PARAMS_v1": "allocation_node",
    "CUgraphEdgeData": "edge",
    "CUgraphExecUpdateResultInfo": "update_result",
    "CUDA_GRAPH_INSTANTIATE_PARAMS": "instantiation",
    "CUgraphNodeParams": "node_parameters",
}
MANAGEMENT = {
    "nvmlPciInfo_t": "pci",
    "nvmlPciInfoExt_v1_t": "pci_ext",
    "nvmlMemory_t": "memory_sizes",
    "nvmlMemory_v2_t": "memory_sizes_v2",
    "nvmlUtilization_t": "utilization",
    "nvmlFieldValue_t": "field_value",
    "nvmlProcessInfo_v1_t": "process_v1",
    "nvmlProcessInfo_v2_t": "process",
    "nvmlTemperature_v1_t": "temperature",
    "nvmlGpuFabricInfo_t": "fabric",
    "nvmlGpuFabricInfo_v3_t": "fabric_v",
}
# Fields that no program reads: reserved words, Windows-only ones, and union members that no provided function returns.
RESERVED = re.compile(r"\breserved\d*\b")
IGNORED = re.compile(
    r"^pad$|win32|asBytes|mipmap\.|extSem|memOp|memcpyBatch|fabricCpy"
    r"|gCtx|value\.(?!uiVal)|locali[sz]ed|localityDomain"
)
ALIAS = re.compile(r"typedef\s+(\w+)\s+(\w+)\s*;")
OPENING = re.compile(r"typedef\s+(?:struct|union)\s*\w*\s*\{")
MEMBER = re.compile(r"(?:const\s+)?(?:unsigned\s+|signed\s+)?(?:long\s+long|[\w]+)\s*[\s*]+(\w+)((?:\[[^]]*\])*)$")
COMPOUND = re.compile(r"(struct|union)\s*\w*\s*\{")


def bodies(header: str) -> dict[str, str]:
    """Returns the text between the braces of each structure, by each of its names."""
    text = re.sub(r"^\s*#.*$", "", headers.without_comments(header), flags=re.MULTILINE)
    found = {}
    for opening in OPENING.finditer(text):
        end = closing(text, opening.end())
        for name in re.findall(r"\w+", text[end + 1 : text.index(";", end)]):
            found[name] = text[opening.end() : end]
    found |= {alias: found[name] for name, alias in ALIAS.findall(text) if name in found}
    return found


def closing(text: str, at: int) -> int:
    depth = 1
    while depth:
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        at += 1
    return at - 1


def members(body: str, known: dict[str, str], prefix: str = "") -> list[str]:
    """The paths of all members; a nested structure counts as its members."""
    found: list[str] = []
    while body := body.strip():
        if compound := COMPOUND.match(body):
            end = closing(body, compound.end())
            name, _, rest = body[end + 1 :].partition(";")
            inner = f"{prefix}{name.strip()}." if name.strip() else prefix
            found += members(body[compound.end() : end], known, inner)
            body = rest
            continue
        declaration, _, body = body.partition(";")
        member = MEMBER.match(declaration.strip())
        assert member, declaration
        of = declaration.split()[0]
        if of in known and "*" not in declaration and not member[2]:
            found += members(known[of], known, f"{prefix}{member[1]}.")
        else:
            found.append(prefix + member[1])
    return found


def layout(file: tuple[str, str], types: dict[str, str], folder: Path) -> dict[str, dict[str, tuple[int, int]]]:
    """Offset and size of each member by the C type, as a compiler lays them out; `` is the whole structure."""
    path = headers.installed_path(*file)
    known = bodies(path.read_text())
    lines = []
    for name in types:
        lines.append(f'printf("{name} . 0 %zu\\n", sizeof({name}));')
        for member in members(known[name], known):
            # NVML has a member of this name: the memory that the driver keeps.
            reserved = file is CUDA and RESERVED.search(member)
            if not reserved and not IGNORED.search(member):
                size = f"sizeof((({name} *)0)->{member})"
                lines.append(f'printf("{name} {member} %zu %zu\\n", offsetof({name}, {member}), {size});')
    source = (
        f"#include <stddef.h>\n#include <stdio.h>\n#include <{path.name}>\nint main(void) {{ {' '.join(lines)} }}\n"
    )
    (folder / "layout.c").write_text(source)
    program = folder / "layout"
    subprocess.run(["cc", "-w", "-I", path.parent, folder / "layout.c", "-o", program], check=True)
    printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    result: dict[str, dict[str, tuple[int, int]]] = {name: {} for name in types}
    for line in printed.splitlines():
        name, member, offset, size = line.split()
        result[name][member.strip(".")] = int(offset), int(size)
    return result


def size_of(kind: str) -> int:
    return int(kind.removeprefix("text")) if kind.startswith("text") else SIZES[kind]


@pytest.mark.parametrize(("file", "types"), [(CUDA, DRIVER), (NVML, MANAGEMENT)], ids=["cuda.h", "nvml.h"])
def test_structures_are_those_of_the_header(file: tuple[str, str], types: dict[str, str], tmp_path: Path) -> None:
    for name, theirs in layout(file, types, tmp_path).items():
        ours: Structure = TABLE.structures[types[name]]
        assert ours.size == theirs.pop("")[1], name
        covered = {at for field in ours.fields for at in range(field.offset, field.offset + size_of(field.kind))}
        missing = [m for m, (at, size) in theirs.items() if not set(range(at, at + size)) <= covered]
        assert not missing, name
        real = {at for offset, size in theirs.values() for at in range(offset, offset + size)}
        assert covered <= real, name
