"""No function says that it worked and leaves an answer unwritten, and each that is provided was seen to work.

Each program runs twice, and what its calls are to answer is filled beforehand, with 0xA5 and with 0x5A: what kept both
was not written (interposer.c). What is an answer says `remoting/registry/parameters.yaml`.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from compiled_programs import building
from compiled_programs.test_compiled_programs import CHECKING, IN_BOTH_FORMS, PER_THREAD
from outputs import interposer
from outputs.conftest import PLACES, Place, unwritten
from remotegpu_codegen.registry import Class
from support import tracer

# Programs whose calls to the driver are those of the others: kernels are what they are about.
OF_KERNELS = {
    "atomics.cu",
    "block_barriers.cu",
    "cooperative.cu",
    "flags_beside_data.cu",
    "grid_sync.cu",
    "groups.cu",
    "illegal_address.cu",
    "machine_code.cu",
    "mapped.cu",
    "math.cu",
    "matrix.cu",
    "offered.cu",
    "reduction.cu",
    "sampling.cu",
    "shuffles.cu",
    "tensor_cores.cu",
    "threads.cu",
    "vector_add.cu",
}
PROGRAMS: list[tuple[str, ...]] = [(source,) for source in CHECKING if source not in OF_KERNELS]
PROGRAMS += [(source, *PER_THREAD) for source in IN_BOTH_FORMS]
# Processes and devices that share.
PROGRAMS += [("share_memory.py",), ("share_events.py",), ("peers.py",)]

NO_SENSOR = "only a real GPU has this sensor"
NEVER = {
    "nvmlDeviceGetTemperature": NO_SENSOR,
    "nvmlDeviceGetTemperatureV": NO_SENSOR,
    "nvmlDeviceGetPowerUsage": NO_SENSOR,
    "nvmlDeviceGetPowerManagementLimit": NO_SENSOR,
    "nvmlDeviceGetEnforcedPowerLimit": NO_SENSOR,
    "cuLibraryGetUnifiedFunction": "no function of a device can be called on the host: there is none to be found",
    "cuOccupancyMaxPotentialClusterSize": "the software GPU has no clusters",
}
ON_A_SHARE = NEVER | {"nvmlDeviceGetClockInfo": "the appliance of a software GPU tells no clock"}


def provided() -> set[str]:
    nowhere = (Class.REFUSED, Class.LACKING)
    driver = {f.symbol for f in interposer.KNOWN.driver if f.handling not in nowhere}
    return driver | {f.symbol for f in interposer.KNOWN.nvml if f.handling not in nowhere}


MORE = [pytest.param((source,), marks=pytest.mark.thorough) for source in sorted(OF_KERNELS)]


@pytest.mark.parametrize("program", [*PROGRAMS, *MORE], ids="-".join)
def test_no_answer_is_left_unwritten(place: Place, program: tuple[str, ...]) -> None:
    assert {str(answer) for answer in unwritten(place.watch(*program))} == set()


@pytest.mark.parametrize("name", PLACES)
def test_every_provided_function_was_seen_to_work(places: Callable[[str], Place], name: str) -> None:
    """So that the test above says something of each; and of what may be left unwritten, that it was written once."""
    reports = [report for program in PROGRAMS for report in places(name).watch(*program)]
    worked = {function for report in reports for function, times in report.worked.items() if times}
    never = ON_A_SHARE if name == "share" else NEVER
    assert provided() - worked == never.keys() and len(never) <= 10
    lacking = {f.symbol for f in interposer.KNOWN.nvml if f.handling is Class.LACKING}
    assert not lacking & worked
    optional = {answer for answer in reports[0].written if answer.optional and answer.function in worked}
    assert not {answer for answer in optional if not any(report.written[answer] for report in reports)}


# One function of each sort of answer, with a program that calls it, and what is to be found if it does nothing.
IDLE = [
    ("driver_streams.c", "cuStreamGetFlags", "cuStreamGetFlags: flags"),
    ("driver_contexts.c", "cuCtxGetStreamPriorityRange", "cuCtxGetStreamPriorityRange: greatest"),
    ("driver_devices.c", "cuDeviceGetName", "cuDeviceGetName: name"),
    ("driver_devices.c", "cuDeviceGetUuid_v2", "cuDeviceGetUuid_v2: uuid"),
    ("driver_arrays.c", "cuArray3DGetDescriptor_v2", "cuArray3DGetDescriptor_v2: descriptor.depth"),
    ("driver_copies.c", "cuMemcpyDtoH_v2", "cuMemcpyDtoH_v2: to"),
    ("driver_pointers.c", "cuPointerGetAttribute", "cuPointerGetAttribute: value[2]"),
    ("driver_pointers.c", "cuPointerGetAttributes", "cuPointerGetAttributes: values[2]"),
    ("graph_edges.c", "cuGraphGetEdges_v2", "cuGraphGetEdges_v2: edges.type"),
    ("graph_memory.c", "cuGraphAddMemAllocNode", "cuGraphAddMemAllocNode: parameters.address"),
    ("managed.c", "cuMemRangeGetAttributes", "cuMemRangeGetAttributes: values"),
]


@pytest.fixture(scope="module")
def above_idle(tmp_path_factory: pytest.TempPathFactory) -> interposer.Interposer:
    """The interposer above a driver of which one function may do nothing and say that it worked."""
    folder = tmp_path_factory.mktemp("idle")
    idle = tracer.build(building.native_libraries() / "libcuda.so.1", folder / "tracer")
    return interposer.build(idle / "libcuda.so.1", folder / "interposer")


@pytest.mark.parametrize(("source", "function", "missing"), IDLE)
def test_an_answer_that_is_left_unwritten_is_found(
    above_idle: interposer.Interposer,
    compiled: Callable[[str], Path],
    tmp_path: Path,
    source: str,
    function: str,
    missing: str,
) -> None:
    driver, idle = building.native_libraries() / "libcuda.so.1", above_idle.driver.parent
    reports = []
    for filling in interposer.FILLINGS:
        file = tmp_path / f"{filling:x}"
        variables = tracer.environment(idle, driver, tmp_path / "calls", function) | above_idle.variables(file, filling)
        with contextlib.suppress(subprocess.TimeoutExpired):  # whatever becomes of a program that is told nothing
            subprocess.run([compiled(source)], env=os.environ | variables, capture_output=True, timeout=20, check=False)
        reports.append(above_idle.layout.read(file))
    assert missing in {str(answer) for answer in unwritten(reports)}
