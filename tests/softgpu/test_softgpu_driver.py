"""The software GPU's driver interface, by programs that call it and check the answers themselves."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"
SMALL = {"REMOTEGPU_SOFTGPU_MEMORY": str(64 << 20)}
HOSTILE = {"REMOTEGPU_SOFTGPU_PROFILE": "hostile", "REMOTEGPU_SOFTGPU_MEMORY": str(4 << 30)}
Run = Callable[..., subprocess.CompletedProcess[str]]


def cases(program: str) -> list[str]:
    return re.findall(r"^def (\w+)\(\) -> None:\n    (?!\"\"\"Runs)", (PROGRAMS / program).read_text(), re.MULTILINE)


def check(result: subprocess.CompletedProcess[str]) -> None:
    assert (result.returncode, result.stdout) == (0, "ok\n"), result.stderr


@pytest.mark.parametrize("case", cases("memory_cases.py"))
def test_memory(run: Run, case: str) -> None:
    check(run("memory_cases.py", case, **SMALL))


@pytest.mark.parametrize("case", cases("stream_cases.py"))
def test_streams(run: Run, case: str) -> None:
    check(run("stream_cases.py", case))


@pytest.mark.parametrize("case", cases("module_cases.py"))
def test_modules(run: Run, case: str) -> None:
    check(run("module_cases.py", case))


ENDINGS = {"at_exit_the_driver_is_there": 0}


@pytest.mark.parametrize("case", cases("fault_cases.py"))
def test_faults(run: Run, case: str) -> None:
    result = run("fault_cases.py", case)
    if case in ENDINGS:
        assert result.returncode == ENDINGS[case], result.stderr
    else:
        check(result)


@pytest.mark.parametrize(
    ("program", "case"),
    [
        ("memory_cases.py", "reserved_addresses_follow_the_hint_or_not"),
        ("memory_cases.py", "physical_memory_keeps_its_contents_wherever_it_is_mapped"),
        ("stream_cases.py", "default_stream_waits_for_blocking_streams_and_they_for_it"),
        ("stream_cases.py", "a_spinning_kernel_stops_no_other_stream"),
        ("fault_cases.py", "an_illegal_address_ends_the_context_and_only_it"),
        ("fault_cases.py", "hostile_drivers_tell_of_faults_late"),
        ("fault_cases.py", "freeing_under_a_kernel"),
        ("fault_cases.py", "contexts_are_pushed_and_popped"),
    ],
)
def test_hostile_profile(run: Run, program: str, case: str) -> None:
    check(run(program, case, **HOSTILE))


@pytest.mark.parametrize(
    ("visible", "ordinals"),
    [
        (None, [0, 1, 2]),
        ("2,0", [2, 0]),
        ("1,9,0", [1]),
        ("GPU-72656d6f-7465-6770-752d-736f66740002", [2]),
        ("", None),
        ("-1", None),
        ("abc", None),
        ("1,1", None),
    ],
)
def test_visible_devices(run: Run, visible: str | None, ordinals: list[int] | None) -> None:
    chosen = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    result = run("devices.py", REMOTEGPU_SOFTGPU_DEVICES="3", **chosen)
    answer = json.loads(result.stdout)
    if ordinals is None:
        assert answer == {"code": 100}  # CUDA_ERROR_NO_DEVICE
    else:
        assert [device["uuid"][-1] for device in answer["devices"]] == [str(i) for i in ordinals]
        assert [device["bus"] for device in answer["devices"]] == [i + 1 for i in ordinals]
        assert answer["nvml"] == 3


def test_settings_reach_cuda_and_nvml(run: Run) -> None:
    uuid = "GPU-00112233-4455-6677-8899-aabbccddeeff"
    result = run(
        "devices.py",
        REMOTEGPU_SOFTGPU_UUIDS=uuid,
        REMOTEGPU_SOFTGPU_PCI_IDS="0000:2a:00.0",
        REMOTEGPU_SOFTGPU_MEMORY="123456789",
        REMOTEGPU_SOFTGPU_DRIVER_VERSION="13000",
    )
    answer = json.loads(result.stdout)
    (device,) = answer["devices"]
    assert device == {
        "name": "remotegpu software GPU",
        "uuid": uuid.removeprefix("GPU-").replace("-", ""),
        "bus": 0x2A,
        "memory": 123456789,
        "capability": [8, 0],
    }
    assert (answer["version"], answer["nvml_uuid"], answer["nvml_memory"]) == (13000, uuid, 123456789)


def test_management_library_through_its_python_binding(run: Run) -> None:
    check(run("management.py", **SMALL))


def test_kernels_print_when_the_program_synchronises(run: Run) -> None:
    result = run("printing.py")
    assert result.stdout.splitlines() == ["before", "number 7 half 0.5", "after"], result.stderr


def test_machine_code_is_refused_with_a_hint(run: Run, tmp_path: Path) -> None:
    image = tmp_path / "machine.cubin"
    image.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(11) + b"\xbe\0" + bytes(100))
    result = run("load_image.py", str(image))
    assert json.loads(result.stdout) == {"module": 209, "library": 0, "kernel": 209}
    assert "CUPY_COMPILE_WITH_PTX=1" in result.stderr
    assert "TRITON_PTXAS_PATH" in result.stderr
