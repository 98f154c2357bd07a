"""Nothing is refused silently: `--report` counts every entry of the table, CUDA's enumerations and the private tables
that is not provided, and each use of it that fails prints one line.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from dataclasses import dataclass
from subprocess import run
from typing import Any

import pytest
from remotegpu_codegen import registry
from remotegpu_codegen.registry import Class
from support.system import PROGRAMS, REMOTEGPU, ROOT

from codegen import headers

REGISTRY = registry.load(ROOT / "remoting" / "registry")
TABLES = (ROOT / "remoting" / "driverapi" / "src" / "export_tables.rs").read_text()
ENUMERATIONS = {
    "cuDeviceGetAttribute": "CUdevice_attribute",
    "cuFuncGetAttribute": "CUfunction_attribute",
    "cuPointerGetAttribute": "CUpointer_attribute",
    "cuStreamGetAttribute": "CUlaunchAttributeID",
    "cuMemPoolGetAttribute": "CUmemPool_attribute",
    "cuCtxGetLimit": "CUlimit",
    "cuCtxSetLimit": "CUlimit",
    "cuMemRangeGetAttribute": "CUmem_range_attribute",
    "cuMemAdvise": "CUmem_advise",
    "cuDeviceGetExecAffinitySupport": "CUexecAffinityType",
}
# Values for which CUDA's documentation has the call fail, too.
FAILS_IN_CUDA = {
    ("cuPointerGetAttribute", "CU_POINTER_ATTRIBUTE_HOST_POINTER"): "device memory has no address on the host",
    **{
        ("cuStreamGetAttribute", f"CU_LAUNCH_ATTRIBUTE_{name}"): "an attribute of launches, which streams do not have"
        for name in (
            "IGNORE", "COOPERATIVE", "CLUSTER_DIMENSION", "CLUSTER_SCHEDULING_POLICY_PREFERENCE",
            "PROGRAMMATIC_STREAM_SERIALIZATION", "PROGRAMMATIC_EVENT", "PREFERRED_CLUSTER_DIMENSION",
            "LAUNCH_COMPLETION_EVENT", "DEVICE_UPDATABLE_KERNEL_NODE", "PREFERRED_SHARED_MEMORY_CARVEOUT",
        )
    },
}  # fmt: skip
IN_PASSING = {"cuLogsRegisterCallback"}


@dataclass(frozen=True)
class Refusals:
    asked: dict[str, Any]
    answered: dict[str, Any]
    report: dict[str, Any]
    err: str

    def counted(self, event: str) -> dict[str, int]:
        times: Counter[str] = Counter()
        for one in self.report["missing"]:
            if one["event"] == event:
                times[one["name"]] += one["times"]
        return dict(times)


@pytest.fixture(scope="module", params=[["--native"], []], ids=["native", "local appliance"])
def refusals(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Refusals:
    folder = tmp_path_factory.mktemp("refusals")
    newest = headers.pinned(headers.PINNED[-1], "cuda.h")
    uuids = ("".join(re.findall(r"\\x(..)", text)) for text in re.findall(r'\(\*b"((?:\\x..){16})"', TABLES))
    of_table = {uuid[:8]: uuid for uuid in uuids}
    asked = {
        "functions": [s for f in REGISTRY.driver if f.handling is Class.REFUSED for s in f.symbols],
        "nvml": [f.symbol for f in REGISTRY.nvml if f.handling is Class.REFUSED],
        "values": {
            function: [value for name, value in headers.enumeration(newest, kind).items() if not name.endswith("_MAX")]
            for function, kind in ENUMERATIONS.items()
        },
        "slots": [
            [of_table[table], int(index)] for table, index in re.findall(r"missing!\(0x(\w{8}), ([1-9]\d*)\)", TABLES)
        ],
        "names": ["cuTravelInTime", "cuGraphInstantiateWithParams_ptsz", "cuMemAlloc_v2"],
    }
    (folder / "asked.json").write_text(json.dumps(asked))
    command = [REMOTEGPU, "run", *request.param, "--report-file", str(folder / "report.json"), "--"]
    program = [sys.executable, str(PROGRAMS / "refusals.py"), str(folder / "asked.json")]
    done = run([*command, *program], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return Refusals(asked, json.loads(done.stdout), json.loads((folder / "report.json").read_text()), done.stderr)


def test_every_refused_function_is_counted_and_says_one_line(refusals: Refusals) -> None:
    assert len(refusals.asked["functions"]) > 200
    assert set(refusals.answered["functions"].values()) == {801}
    assert refusals.counted("refused").keys() >= set(refusals.asked["functions"])
    said = Counter(re.findall(r"\b(cu\w+)\b.* (?:gets CUDA_ERROR_NOT_SUPPORTED|is not supported)", refusals.err))
    for function in set(refusals.asked["functions"]) - IN_PASSING:
        # The client prints one line for a function and its per-thread stream form.
        assert said[function] == 1 or said[re.sub(r"_pt[ds][sz]$", "", function)] == 1, function


def test_every_refused_function_of_nvml_is_counted(refusals: Refusals) -> None:
    refused = {name for name, code in refusals.answered["nvml"].items() if code == 3}
    # The remaining functions miss an argument first.
    assert len(refused) > 250 and set(refusals.answered["nvml"].values()) <= {2, 3}
    assert refusals.counted("refused by NVML").keys() >= refused


def test_every_value_of_an_enumeration_is_answered_or_counted(refusals: Refusals) -> None:
    """A value that the newest cuda.h adds to an enumeration is reported as refused until it is supported."""
    newest = headers.pinned(headers.PINNED[-1], "cuda.h")
    counted = refusals.counted("refused value")
    failed = 0
    for function, kind in ENUMERATIONS.items():
        answers = refusals.answered["values"][function]
        for name, value in headers.enumeration(newest, kind).items():
            code = 0 if name.endswith("_MAX") else answers[str(value)]
            if code and (function, name) not in FAILS_IN_CUDA:
                failed += 1
                # A setter of limits asks the getter first.
                asked = "cuCtxGetLimit" if function == "cuCtxSetLimit" else function
                assert counted.get(f"{asked} of {value}", 0) > 0, f"{function}: {name} fails with {code} silently"
    assert failed
    # With a local appliance, the software GPU says the same in its log, which may come to the terminal.
    said = Counter(re.findall(r"^(remotegpu: .*cuFuncGetAttribute): .* 17 is not provided", refusals.err, re.MULTILINE))
    assert said and set(said.values()) == {1}
    # Every counted refusal did fail.
    for name in counted:
        function, _, which = name.partition(" of ")
        assert refusals.answered["values"][function][which] != 0


def test_every_refused_slot_is_counted_with_who_called_it(refusals: Refusals) -> None:
    assert len(refusals.asked["slots"]) > 10
    assert set(refusals.answered["slots"]) == {801}
    counted = refusals.counted("refused slot")
    for table, index in refusals.asked["slots"]:
        name = f"{table[:8]} slot {index}"
        assert counted.get(name) == 1, name
        assert len(re.findall(rf"slot {index} of the private table {table[:8]} is not provided", refusals.err)) == 1
    asked_by = {one["asked_by"] for one in refusals.report["missing"] if one["event"] == "refused slot"}
    # Python calls through libffi, which is a library or part of `_ctypes`.
    assert len(asked_by) == 1 and re.search("ffi|ctypes|the program", str(asked_by))


def test_only_names_that_are_no_symbols_are_missing(refusals: Refusals) -> None:
    assert refusals.counted("unknown function") == {"cuTravelInTime": 1}
    assert "cuTravelInTime" not in refusals.err
    (one,) = [one for one in refusals.report["missing"] if one["event"] == "unknown function"]
    assert one["asked_by"]
