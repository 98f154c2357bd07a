"""C and CUDA C++ programs, compiled by nvcc with the static runtime, natively and remotely.

Each checks its results itself and prints "ok". Natively they run on the software GPU (or the driver in
REMOTEGPU_NATIVE_LIB_DIR); remotely on a share of an appliance.
"""

from __future__ import annotations

import os
import re
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest
from compiled_programs import building, calls
from support import capabilities
from support.system import Appliance

Run = Callable[..., subprocess.CompletedProcess[str]]

CHECKING = [
    "vector_add.cu",
    "reduction.cu",
    "launches.cu",
    "groups.cu",
    "shuffles.cu",
    "atomics.cu",
    "threads.cu",
    "peers.cu",
    "arrays.cu",
    "sampling.cu",
    "streams_events.cu",
    "async_copies.cu",
    "callbacks.cu",
    "per_thread.cu",
    "pools.cu",
    "copies.cu",
    "properties.cu",
    "symbols.cu",
    "managed_variable.cu",
    "mapped.cu",
    "math.cu",
    "matrix.cu",
    "cooperative.cu",
    "grid_sync.cu",
    "tensor_cores.cu",
    "block_barriers.cu",
    "flags_beside_data.cu",
    "offered.cu",
    "illegal_address.cu",
    "machine_code.cu",
    "capabilities.c",
    "destroyed_context.c",
    "at_the_end.cpp",
    "bounds.c",
    "brief_streams.c",
    "cancelled.c",
    "children.c",
    "closed_streams.c",
    "identity.c",
    "private_tables.c",
    *building.DRIVER_PROGRAMS,
]
# Streams, fills, copies and launches exist a second time, for programs whose default stream is one per thread.
PER_THREAD = ("-DCUDA_API_PER_THREAD_DEFAULT_STREAM",)
IN_BOTH_FORMS = [
    "driver_copies.c", "driver_kernels.c", "driver_memory.c", "driver_pools.c", "driver_streams.c",
    "host_side_on_device.c", "managed.c", "memory_operations.c",
]  # fmt: skip
# Beside a socket of this machine, which an appliance on it takes by itself.
BY_EVERY_CARRIER = [
    "at_the_end.cpp", "bounds.c", "brief_streams.c", "cancelled.c", "children.c", "closed_streams.c",
    "driver_contexts.c", "driver_memory.c", "driver_pools.c", "graph_children.c", "host_side_on_device.c",
    "host_virtual_memory.c", "small_stacks.c", "texture_views.c",
]  # fmt: skip


@pytest.mark.parametrize("source", CHECKING)
def test_program_checks_itself(runner: Run, compiled: Callable[[str], Path], source: str) -> None:
    run = runner(compiled(source))
    assert (run.returncode, run.stdout) == (0, "ok\n"), run.stderr


# Its kernels wait for each other, which takes minutes on a busy machine.
PATIENT = "flags_beside_data.cu"


@pytest.mark.parametrize("source", [source for source in CHECKING if source != PATIENT])
def test_program_orders_its_streams(compiled: Callable[[str], Path], source: str) -> None:
    """The overlap checker finds nothing in it, and changes nothing of what it does."""
    if not (building.native_libraries() / "libcuda.so.1").exists():
        pytest.skip("the software GPU is not built (make build)")
    settings = {"LD_LIBRARY_PATH": str(building.native_libraries()), "REMOTEGPU_CHECK": "overlap"}
    run = subprocess.run(
        [compiled(source)], check=False, capture_output=True, text=True, timeout=120, env=os.environ | settings
    )
    assert (run.returncode, run.stdout, "overlap" in run.stderr) == (0, "ok\n", False), run.stderr


@pytest.mark.parametrize("source", IN_BOTH_FORMS)
def test_program_with_a_default_stream_per_thread(runner: Run, compiled: Callable[..., Path], source: str) -> None:
    run = runner(compiled(source, *PER_THREAD))
    assert (run.returncode, run.stdout) == (0, "ok\n"), run.stderr


@pytest.mark.parametrize("carrier", ["direct", "grpc"])
@pytest.mark.parametrize("source", BY_EVERY_CARRIER)
def test_program_by_the_other_carriers(
    share: Appliance, compiled: Callable[[str], Path], source: str, carrier: str
) -> None:
    run = share.run(str(compiled(source)), env={"REMOTEGPU_CARRIER": carrier})
    assert (run.returncode, run.stdout) == (0, "ok\n"), run.stderr


@pytest.mark.parametrize("kind", ["thread", "fiber"])
def test_first_calls_on_small_stacks(runner: Run, compiled: Callable[[str], Path], kind: str) -> None:
    run = runner(compiled("small_stacks.c"), *([kind] if kind == "fiber" else []))
    assert (run.returncode, run.stdout) == (0, "ok\n"), run.stderr


def test_default_build_with_machine_code_and_ptx(runner: Run, compiled: Callable[..., Path]) -> None:
    """nvcc without options packs a cubin, which may not fit the device, and PTX, which does."""
    run = runner(compiled("vector_add.cu", "--default"))
    assert (run.returncode, run.stdout) == (0, "ok\n"), run.stderr


def test_separately_compiled_code_is_linked_when_it_is_loaded(runner: Run, compiled: Callable[..., Path]) -> None:
    """Relocatable device code: the program passes the parts that its linker left apart."""
    run = runner(compiled("vector_add.cu", "-rdc=true"))
    assert (run.returncode, run.stdout) == (0, "ok\n"), run.stderr


@pytest.mark.parametrize("source", building.DRIVER_PROGRAMS)
def test_the_table_of_calls_is_what_programs_call(
    traced: Path, compiled: Callable[[str], Path], source: str, tmp_path: Path
) -> None:
    called = calls.recorded(compiled(source), traced, tmp_path / "calls.json")
    assert called == calls.committed()[source], "run `make calls generate` and commit the result"


def test_a_function_that_does_nothing_is_noticed(traced: Path, compiled: Callable[[str], Path], tmp_path: Path) -> None:
    """So that "a test calls it" means that a test fails without it."""
    callers: dict[str, list[str]] = {}
    for source, functions in calls.committed().items():
        for function in functions:
            callers.setdefault(function, []).append(source)
    out = tmp_path / "calls.json"
    unnoticed = [
        function
        for function, sources in callers.items()
        if not any(calls.notices(compiled(source), traced, out, function) for source in sources)
    ]
    assert not unnoticed


def test_every_installed_runtime_starts(runner: Run, compiled: Callable[[str], Path]) -> None:
    """Each runtime checks the driver in its own way: the private tables, and the integrity check (error 103)."""
    packages = Path(sysconfig.get_path("purelib")) / "nvidia"
    runtimes = sorted(packages.glob("*/lib/libcudart.so.*"))
    assert runtimes
    for runtime in runtimes:
        run = runner(compiled("start_runtime.c"), runtime)
        assert (run.returncode, run.stdout) == (0, "ok\n"), f"{runtime.name}: {run.stderr}"


def test_what_kernels_print_is_there_after_a_wait_that_need_not_ask(
    runner: Run, compiled: Callable[[str], Path]
) -> None:
    run = runner(compiled("idle_waits.cu"))
    expected = [f"{who} {turn}" for turn in range(6) for who in ("kernel", "program")]
    assert (run.returncode, run.stdout.splitlines()) == (0, [*expected, "ok"]), run.stderr


def test_printf_of_kernels(runner: Run, compiled: Callable[[str], Path]) -> None:
    run = runner(compiled("print.cu"))
    expected = [f"block {b} thread {t}: text {0.5 * t:5.2f} z -5000000000 beef%" for b in range(2) for t in range(3)]
    *lines, last = run.stdout.splitlines()
    assert (run.returncode, last, sorted(lines)) == (0, "ok", expected), run.stderr


def test_what_is_not_provided_says_so_once(runner: Run, compiled: Callable[[str], Path]) -> None:
    """An error and one line for each function, however often it is called, and the program continues."""
    run = runner(compiled("not_provided.c"))
    assert (run.returncode, run.stdout) == (0, "ok\n"), run.stderr
    named = re.findall(r"remotegpu: (?:software GPU: )?(\w+)\b.* is not (?:supported|provided)", run.stderr)
    assert len(named) == len(set(named)) >= 9, run.stderr
    assert {"cuGraphAddBatchMemOpNode", "cuMipmappedArrayCreate"} <= set(named)
    assert re.search(r"cubemap.* is not (?:supported|provided)", run.stderr), run.stderr


def test_attributes_and_functions_say_the_same(runner: Run, compiled: Callable[[str], Path]) -> None:
    """Called with nothing but zeros a function that is not provided answers so; one that is finds fault with them."""
    not_supported = 801
    listed = runner(compiled("capabilities.c"), "list").stdout.split()
    values = dict(zip(map(int, listed[::2]), map(int, listed[1::2]), strict=True))
    numbers = capabilities.numbers()
    tables = capabilities.FUNCTIONS | capabilities.PROMISES
    names = {function for functions in tables.values() for function in functions}
    called = runner(compiled("null_handles.c"), stdin="\n".join(sorted(names)))
    assert called.returncode == 0
    codes = {name: int(code) for round_, name, code in map(str.split, called.stdout.splitlines()) if round_ == "1"}
    assert set(codes) == names
    provided = {name for name, code in codes.items() if code != not_supported}
    for attribute, functions in tables.items():
        reported = bool(values.get(numbers[attribute], 0))
        assert not reported or set(functions) <= provided, attribute
        assert reported or attribute in capabilities.PROMISES or not set(functions) <= provided, attribute


def test_failed_assertion_names_its_place(runner: Run, compiled: Callable[[str], Path]) -> None:
    run = runner(compiled("device_assert.cu"))
    assert (run.returncode, run.stdout) == (0, "ok\n"), run.stderr
    pattern = r"device_assert\.cu:\d+: .*block: \[0,0,0\], thread: \[3,0,0\] Assertion `.*limit` failed\."
    assert re.search(pattern, run.stderr)


NOT_INITIALIZED, INVALID_VALUE = 3, 1


def test_zeros_crash_nothing(runner: Run, compiled: Callable[[str], Path], exported: list[str]) -> None:
    """Every exported function, called with nothing but zeros: an answer from each, and the documented ones."""
    run = runner(compiled("null_handles.c"), stdin="\n".join(exported))
    assert run.returncode == 0, run.stdout.splitlines()[-1:]
    before: dict[str, int] = {}
    after: dict[str, int] = {}
    for line in run.stdout.splitlines():
        round_, name, code = line.split()
        (after if round_ == "1" else before)[name] = int(code)
    assert len(before) > 200
    assert set(after) - set(before) == {"cuInit"}
    for name in ("cuDeviceGetCount", "cuCtxGetCurrent", "cuMemAlloc_v2", "cuLaunchKernel", "cuStreamSynchronize"):
        assert before[name] == NOT_INITIALIZED, name
    for name in ("cuDriverGetVersion", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName", "cuCtxGetCurrent"):
        assert after[name] == INVALID_VALUE, name
    assert not {name for name, code in after.items() if code == NOT_INITIALIZED}
