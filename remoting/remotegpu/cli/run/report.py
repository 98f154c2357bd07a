"""The report of `remotegpu run --report`: lists unsupported requests of the programs in a run."""

import contextlib
import json
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from remotegpu.api import names

REFUSED: Final = "refused"
REFUSED_VALUE: Final = "refused value"
REFUSED_SLOT: Final = "refused slot"
REFUSED_BY_NVML: Final = "refused by NVML"
BEYOND: Final = "beyond"
UNKNOWN_FUNCTION: Final = "unknown function"
UNKNOWN_TABLE: Final = "unknown table"
ABSENT_LIBRARY: Final = "absent library"

_TITLES: Final = {
    REFUSED: "answered with CUDA_ERROR_NOT_SUPPORTED (801):",
    REFUSED_VALUE: "attributes and options for which a function failed:",
    REFUSED_SLOT: "functions of private tables, answered with CUDA_ERROR_NOT_SUPPORTED (801):",
    REFUSED_BY_NVML: "answered with NVML_ERROR_NOT_SUPPORTED (3):",
    BEYOND: "more memory of the program, used by kernels in place, than a setting allows:",
    UNKNOWN_FUNCTION: "not found by cuGetProcAddress:",
    UNKNOWN_TABLE: "private tables not found by cuGetExportTable:",
    ABSENT_LIBRARY: "libraries that were looked for and are not provided:",
}

_WITH_A_CODE: Final = (REFUSED, REFUSED_VALUE, REFUSED_SLOT, REFUSED_BY_NVML, BEYOND)

# Parts of NVIDIA's driver, and loaders of OpenCL and Vulkan, which do not support our devices.
_ABSENT: Final = {
    "libnvcuvid.so": "NVDEC, video decoding, is not provided",
    "libnvidia-encode.so": "NVENC, video encoding, is not provided",
    "libnvidia-opticalflow.so": "optical flow is not provided",
    "libnvoptix.so": "OptiX is not provided",
    "libOpenCL.so": "OpenCL is not provided",
    "libnvidia-opencl.so": "OpenCL is not provided",
    "libvulkan.so": "Vulkan is not provided",
    "libGLX_nvidia.so": "Vulkan and OpenGL are not provided",
    "libEGL_nvidia.so": "EGL is not provided",
}
# A line in the dynamic loader's log of `LD_DEBUG=files`.
_LOOKED_FOR: Final = re.compile(
    r"^ *(?P<process>\d+):\tfile=(?P<path>\S+) \[\d+\]; +(?:dynamically loaded|needed) by (?P<by>\S+) "
)

# Lookups at the start of every copy of CUDA's runtime that may fail: functions of tools, and two tables that are newer
# than the rest.
_LOOKED_FOR_IN_PASSING: Final = re.compile(r"|cuSubgrid\w+")
_TABLES_DONE_WITHOUT: Final = ("f8cff951", "da9151d3")

_NEXT_STEPS: Final = {
    "arrays, textures and surfaces are not provided": "read from plain memory in place of textures",
    "external memory and semaphores are not provided": "hand data to graphics interfaces through the host",
    "green contexts are not provided": "use streams of the whole device",
    "32-bit addresses from before CUDA 3.2 are not provided": "build the program with a newer CUDA",
    "the profiler is not provided": "nothing is to be done for the program; a profile shows what the CPU does, "
    "and no kernels",
}
_OTHERWISE: Final = {
    REFUSED: "if the program continues, do nothing; else look for a setting that avoids this "
    "(docs/limitations.md says what is not provided)",
    REFUSED_VALUE: "if the program continues, do nothing; else use a library that is built for an older CUDA",
    REFUSED_SLOT: "a library uses an interface that NVIDIA does not document; if it fails, try another version of it",
    REFUSED_BY_NVML: "nothing is to be done: tools show such a value as N/A",
    BEYOND: "set the variable to more MiB, or let the program copy the data to the device (docs/page-locked-memory.md)",
    UNKNOWN_FUNCTION: "the program looks for a newer driver than this one stands for; if it ends for that, use one "
    "built for an older CUDA",
    UNKNOWN_TABLE: "a library uses an interface that NVIDIA does not document; if it fails, try another version of it",
    ABSENT_LIBRARY: "let the program do this work on the CPU, or on a machine that has the GPU itself",
}


@dataclass(frozen=True, slots=True, order=True)
class Lack:
    event: str
    name: str
    detail: str = ""
    reason: str = ""
    module: str = ""
    """The file whose code asked, for what only libraries ask for."""

    @property
    def in_passing(self) -> bool:
        """Whether every program makes this request and works without it."""
        if self.event == UNKNOWN_TABLE:
            return self.name.startswith(_TABLES_DONE_WITHOUT)
        return self.event == UNKNOWN_FUNCTION and bool(_LOOKED_FOR_IN_PASSING.fullmatch(self.name))

    @property
    def what(self) -> str:
        name = self.name
        if self.event == UNKNOWN_FUNCTION:
            version = int(self.detail)
            name += f" (as of CUDA {version // 1000}.{version % 1000 // 10})"
        elif self.event in (REFUSED_VALUE, BEYOND):
            name += f" (error {self.detail})"
        asked = f", asked for by {self.module}" if self.module else ""
        return f"{name}{asked}: {self.reason}" if self.reason else name + asked

    @property
    def error(self) -> int | None:
        """The error code of the call; None if the event has none."""
        return int(self.detail) if self.event in _WITH_A_CODE else None

    @property
    def next_step(self) -> str:
        return _NEXT_STEPS.get(self.reason, _OTHERWISE[self.event])


@dataclass(slots=True)
class Report:
    processes: set[int] = field(default_factory=set)
    times: Counter[Lack] = field(default_factory=Counter)
    by_process: dict[Lack, set[int]] = field(default_factory=dict)

    @property
    def lacks(self) -> list[Lack]:
        """Unsupported requests, ordered by kind and frequency, without those of `in_passing`."""
        order = list(_TITLES)
        needed = (lack for lack in self.times if not lack.in_passing)
        return sorted(needed, key=lambda lack: (order.index(lack.event), -self.times[lack], lack.name))


def parse(lines: Iterable[str]) -> Report:
    """Parses lines of `remoting/driverapi/src/report.rs`: process, event, name, detail, reason, module."""
    report = Report()
    for line in lines:
        process, event, *rest = line.rstrip("\n").split("\t")
        report.processes.add(int(process))
        if event in _TITLES:
            lack = Lack(event, *rest)
            report.times[lack] += 1
            report.by_process.setdefault(lack, set()).add(int(process))
    return report


def add_absent_libraries(report: Report, lines: Iterable[str]) -> None:
    """Adds lookups of unsupported libraries from the dynamic loader's log, since they may involve no CUDA call."""
    for line in lines:
        found = _LOOKED_FOR.match(line)
        name = Path(found["path"]).name if found else ""
        reason = _ABSENT.get(name.partition(".so")[0] + ".so")
        if found and reason:
            lack = Lack(ABSENT_LIBRARY, name, "", reason, found["by"])
            report.times[lack] += 1
            report.by_process.setdefault(lack, set()).add(int(found["process"]))


def text(report: Report) -> str:
    who = _count(len(report.processes), "process", "processes")
    if not report.processes and not report.lacks:
        return "report: no process used CUDA"
    if not report.lacks:
        done_without = sum(report.times.values())
        passing = (
            f" but for what every CUDA runtime asks for and does without ({done_without}x)" if done_without else ""
        )
        return f"report: {who} used CUDA and asked for nothing that is not provided{passing}"
    lines = [f"report: {who} used CUDA and asked for what is not provided"]
    for event, title in _TITLES.items():
        of_event = [lack for lack in report.lacks if lack.event == event]
        if of_event:
            lines.append(f"  {title}")
            lines += [f"    {report.times[lack]:6}x {lack.what}{_spread(report, lack)}" for lack in of_event]
    steps = dict.fromkeys((lack.reason or _TITLES[lack.event].rstrip(":"), lack.next_step) for lack in report.lacks)
    return "\n".join([*lines, "  what to do:", *(f"    {subject}: {step}" for subject, step in steps)])


def _spread(report: Report, lack: Lack) -> str:
    processes = len(report.by_process[lack])
    return f" (in {processes} processes)" if processes > 1 else ""


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def as_json(report: Report) -> dict[str, Any]:
    return {
        "processes": len(report.processes),
        "missing": [
            {
                "event": lack.event,
                "name": lack.name,
                "times": report.times[lack],
                "processes": len(report.by_process[lack]),
                "error": lack.error,
                "asked_by": lack.module or None,
                "reason": lack.reason or None,
                "next_step": lack.next_step,
            }
            for lack in report.lacks
        ],
        "looked_for_in_passing": sorted({lack.name for lack in report.times if lack.in_passing}),
    }


@contextlib.contextmanager
def reporting(wanted: bool, file: Path | None) -> Iterator[dict[str, str]]:
    """Yields the variables that enable the report. After the block, writes the report to stderr or `file` (JSON)."""
    if not wanted and file is None:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="remotegpu-report-") as folder:
        events, loads = Path(folder) / "events", Path(folder) / "loads"
        events.touch()
        try:
            # The loader logs each lookup, also failed ones. An LD_DEBUG of the user stays as it is.
            asked = {} if "LD_DEBUG" in os.environ else {"LD_DEBUG": "files", "LD_DEBUG_OUTPUT": str(loads)}
            yield {names.REPORT_ENV: str(events)} | asked
        finally:
            with events.open(encoding="utf-8") as lines:
                report = parse(lines)
            for each in sorted(events.parent.glob("loads.*")):
                with each.open(encoding="utf-8", errors="replace") as lines:
                    add_absent_libraries(report, lines)
            if file is not None:
                file.write_text(json.dumps(as_json(report), indent=2) + "\n")
            if wanted:
                sys.stderr.write(f"remotegpu: {text(report)}\n")
