"""NVML shows the shares: as CUDA does, and the lease's processes only."""

from __future__ import annotations

import json
from typing import Any

from support.system import Appliance, line

SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED = 0, 1, 2, 3
NOT_FOUND, INSUFFICIENT_SIZE, ARGUMENT_VERSION_MISMATCH = 6, 7, 25


def seen(remote: Appliance, **options: Any) -> dict[str, Any]:
    done = remote.run("devices_seen.py", **options)
    assert done.returncode == 0, done.stderr
    value: dict[str, Any] = json.loads(done.stdout)
    return value


def test_nvml_and_cuda_speak_of_the_same_devices(remote: Appliance) -> None:
    found = seen(remote)
    assert len(found["nvml"]) == 1
    assert found["nvml"] == found["cuda"]
    assert found["nvml"][0]["memory"] == 512 << 20


def test_nvml_lists_the_lease_s_processes_only(remote: Appliance) -> None:
    with remote.start("endless_calls.py") as other_tenant:
        assert line(other_tenant) == "ready"
        found = seen(remote)
    ((pid, used),) = found["processes"]
    assert pid == found["pid"]
    # Memory is granted in slabs, so at least what was allocated.
    assert 8 << 20 <= used == found["used"] <= 512 << 20


def test_cuda_visible_devices_hides_nothing_from_nvml(remote: Appliance) -> None:
    assert len(seen(remote, env={"CUDA_VISIBLE_DEVICES": ""})["nvml"]) == 1


def test_mistakes_get_the_documented_codes(remote: Appliance) -> None:
    done = remote.run("nvml_mistakes.py")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "before init": UNINITIALIZED,
        "shutdown before init": UNINITIALIZED,
        "init": SUCCESS,
        "second init": SUCCESS,
        "first shutdown": SUCCESS,
        "handle": SUCCESS,
        "index too high": INVALID_ARGUMENT,
        "no place for the handle": INVALID_ARGUMENT,
        "no device": INVALID_ARGUMENT,
        "null device": INVALID_ARGUMENT,
        "null result": INVALID_ARGUMENT,
        "buffer too small": INSUFFICIENT_SIZE,
        "unknown uuid": NOT_FOUND,
        "bus id that is none": INVALID_ARGUMENT,
        "structure of another version": ARGUMENT_VERSION_MISMATCH,
        "unknown clock": INVALID_ARGUMENT,
        "not provided": NOT_SUPPORTED,
        "unknown process": NOT_FOUND,
        "last shutdown": SUCCESS,
        "after shutdown": UNINITIALIZED,
    }
