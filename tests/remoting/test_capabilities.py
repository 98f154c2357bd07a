"""An attribute of a device and the functions that it promises say the same, whatever device the appliance has."""

from __future__ import annotations

import json
import subprocess
from functools import cache
from pathlib import Path

import pytest
import yaml
from support import capabilities
from support.system import DIST, ROOT

# A driver whose device has every attribute.
HAS_EVERYTHING = r"""
#include <stddef.h>
#include <string.h>
int cuInit(unsigned flags) { return flags; }
int cuDriverGetVersion(int *version) { *version = 13050; return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetName(char *name, int length, int device) { strncpy(name, "everything", length); return device; }
int cuDeviceGetUuid_v2(char *uuid, int device) { memset(uuid, 7, 16); return device; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = 1 << 30; return device; }
int cuDeviceGetAttribute(int *value, unsigned attribute, int device)
{
    *value = 1;
    return attribute >= %d ? 1 : device;
}
"""


@pytest.fixture(scope="module")
def filtered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """The attributes of such a device that a client gets, by name."""
    worker = DIST / "bin" / "remotegpu-worker"
    if not worker.exists():
        pytest.skip("the worker is not built (make build)")
    numbers = capabilities.numbers()
    folder = tmp_path_factory.mktemp("everything")
    source, library = folder / "everything.c", folder / "libcuda.so.1"
    source.write_text(HAS_EVERYTHING % (max(numbers.values()) + 1))
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    run = subprocess.run([worker, "--snapshot", "--driver", library], check=True, capture_output=True, text=True)
    told = json.loads(run.stdout)["devices"][0]["attributes"]
    return {name: told[str(number)] for name, number in numbers.items()}


@cache
def provided() -> frozenset[str]:
    table = yaml.safe_load((ROOT / "remoting" / "registry" / "driver.yaml").read_text())
    functions = [function for group in table.values() for function in group]
    return frozenset(function["symbol"] for function in functions if function["class"] != "refused")


def test_every_attribute_is_classified_once() -> None:
    tables = (capabilities.FUNCTIONS, capabilities.PROMISES, capabilities.FLAGS, capabilities.WISHES)
    for name in capabilities.numbers():
        places = sum(name in table for table in tables) + bool(capabilities.NO_FUNCTIONS.fullmatch(name))
        assert places == 1, name
    assert {name for table in tables for name in table} <= set(capabilities.numbers())


@pytest.mark.parametrize("name", capabilities.FUNCTIONS)
def test_what_is_reported_is_provided_and_what_is_not_is_not(filtered: dict[str, int], name: str) -> None:
    functions = set(capabilities.FUNCTIONS[name])
    if filtered[name]:
        assert functions <= provided(), (
            "filter the attribute (worker/src/session/snapshot.rs), or provide the functions"
        )
    else:
        assert not functions <= provided(), "do not filter the attribute any more (worker/src/session/snapshot.rs)"


@pytest.mark.parametrize("name", capabilities.PROMISES)
def test_what_is_promised_is_provided(filtered: dict[str, int], name: str) -> None:
    assert not filtered[name] or set(capabilities.PROMISES[name]) <= provided()


def test_flags_and_wishes_that_no_function_takes_are_not_reported(filtered: dict[str, int]) -> None:
    expected = capabilities.FLAGS | capabilities.WISHES
    assert {name: bool(filtered[name]) for name in expected} == expected


def test_a_program_tries_each_flag() -> None:
    program = (Path(__file__).parents[1] / "compiled_programs" / "capabilities.c").read_text()
    for name in [*capabilities.FLAGS, "COOPERATIVE_LAUNCH", "CLUSTER_LAUNCH"]:
        assert f"CU_DEVICE_ATTRIBUTE_{name}," in program, name
