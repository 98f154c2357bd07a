"""How the programs of this folder are compiled, and with which toolkit."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from pathlib import Path

from support.system import DIST

SOURCES = Path(__file__).parent

# Written against the driver's functions themselves, so that what they call is what they check.
DRIVER_PROGRAMS = (
    "conditional_nodes.c",
    "driver_arrays.c",
    "driver_contexts.c",
    "driver_copies.c",
    "driver_devices.c",
    "driver_kernels.c",
    "driver_memory.c",
    "driver_modules.c",
    "driver_old_forms.c",
    "driver_pointers.c",
    "driver_pools.c",
    "driver_streams.c",
    "graph_children.c",
    "graph_edges.c",
    "graph_memory.c",
    "graph_nodes.c",
    "graph_old_forms.c",
    "graph_programmatic.c",
    "graphs.c",
    "host_side_on_device.c",
    "host_virtual_memory.c",
    "launch_events.c",
    "limits.c",
    "managed.c",
    "memory_operations.c",
    "nvml_queries.c",
    "setters.c",
    "old_launches.c",
    "shared_handles.c",
    "stale_handles.c",
    "tensor_maps.c",
    "texture_views.c",
    "virtual_memory.c",
)

# What older GPUs do not have.
AMPERE_PROGRAMS = ("block_barriers.cu", "tensor_cores.cu")


def toolkit() -> Path | None:
    """CUDA's compiler from the wheels of the active environment."""
    folder = Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13"
    return folder if (folder / "bin" / "nvcc").exists() else None


def native_libraries() -> Path:
    """The folder of the libcuda.so.1 that native runs load."""
    return Path(os.environ.get("REMOTEGPU_NATIVE_LIB_DIR", DIST / "native"))


def build(source: str, folder: Path, toolkit: Path, options: tuple[str, ...] = ()) -> Path:
    """Compile a source file of this folder to a program in `folder`."""
    program = folder / "-".join((source.replace(".", "_"), *(option.strip("-") for option in options)))
    subprocess.run(_command(source, program, toolkit, options), check=True, capture_output=True, text=True)
    return program


def _command(source: str, program: Path, toolkit: Path, options: tuple[str, ...]) -> list[str]:
    path = os.fspath(SOURCES / source)
    if source.endswith((".c", ".cpp")):
        library = ["-L", os.fspath(native_libraries()), "-l:libcuda.so.1", "-ldl"]
        library += ["-l:libnvidia-ml.so.1"] if source.startswith("nvml") else []
        compiler = "cc" if source.endswith(".c") else "c++"
        return [compiler, *options, "-I", os.fspath(toolkit / "include"), path, "-o", os.fspath(program), *library]
    line = [os.fspath(toolkit / "bin" / "nvcc"), "-o", os.fspath(program), path, f"-L{toolkit / 'lib'}"]
    line += ["-I", os.fspath(toolkit / "include" / "cccl")]
    if "--default" not in options:
        lowest = "80" if source in AMPERE_PROGRAMS else "75"
        kind = "sm" if source == "machine_code.cu" else "compute"
        line += ["-gencode", f"arch=compute_{lowest},code={kind}_{lowest}"]
    line += [option for option in options if option.startswith("-rdc")]
    if source == "per_thread.cu":
        line += ["--default-stream", "per-thread"]
    return line
