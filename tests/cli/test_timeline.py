"""`remotegpu run --trace`: the document for Perfetto, and what the summary says."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from support.system import PROGRAMS, REMOTEGPU

from remotegpu.cli import exits
from remotegpu.cli.run import timeline
from remotegpu.cli.run.trace import Record, Recording, read

MS = 1_000_000


def call(function: str, start: int, took: int, *, thread: str = "main", nested: bool = False, **inputs: Any) -> Record:
    """A record; times in ms."""
    more = {"nested": 1} if nested else {}
    return {"t": thread, "f": function, "in": inputs, "code": 0, "start": start * MS, "took": took * MS, **more}


def recording(*records: Record, began: int = 0) -> Recording:
    return Recording({"began": began * MS, "program": ["python", "x.py"]}, records, torn=False)


def lines(*records: Record) -> str:
    return "\n".join(timeline.report(timeline.summary([recording(*records)])))


def test_processes_and_threads_have_one_clock() -> None:
    first = recording(call("cuInit", 0, 1), call("cuMemAlloc_v2", 5, 1, thread="main/x:2"), began=100)
    second = recording(call("cuInit", 2, 3), began=107)
    complete = [event for event in timeline.events([first, second])["traceEvents"] if event["ph"] == "X"]
    assert [(it["name"], it["cat"], it["pid"], it["tid"], it["ts"], it["dur"]) for it in complete] == [
        ("cuInit", "start", 1, 1, 0.0, 1000.0),
        ("cuMemAlloc_v2", "memory", 1, 2, 5000.0, 1000.0),
        ("cuInit", "start", 2, 1, 9000.0, 3000.0),
    ]


def test_a_call_within_another_counts_once() -> None:
    found = timeline.summary([recording(call("cuLaunchKernel", 0, 10), call("cuMemcpyHtoD_v2", 2, 3, nested=True))])
    assert {name: total.nanoseconds for name, total in found.kinds.items()} == {"launch": 10 * MS}
    assert found.seconds == 0.010


def test_reading_single_numbers_is_told() -> None:
    steps = []
    for step in range(12):
        steps.append(call("cuLaunchKernel", 10 * step, 1))
        steps.append(call("cuMemcpyDtoHAsync_v2", 10 * step + 1, 1, bytes=4))
        steps.append(call("cuStreamSynchronize", 10 * step + 2, 5))
    assert "12 copies of a few bytes to the host took 0.072 s" in lines(*steps)
    large = [{**record, "in": {"bytes": 1 << 20}} if "DtoH" in record["f"] else record for record in steps]
    assert "copies of a few bytes" not in lines(*large)
    assert "12 waits for 12 launches took 0.060 s" in lines(*large)


def test_one_wait_behind_many_launches_is_as_it_should_be() -> None:
    steps = [call("cuLaunchKernel", step, 1) for step in range(200)]
    steps += [call("cuStreamSynchronize", 200 + step, 1) for step in range(12)]
    assert "waits for" not in lines(*steps)


@pytest.mark.parametrize(("source", "told"), [({"bytes": 4 << 20, "hash": "x"}, True), ("memory#1+0", False)])
def test_large_copies_from_pageable_memory_are_told(source: object, told: bool) -> None:
    copy = {**call("cuMemcpyHtoD_v2", 0, 4), "in": {"from": source, "bytes": 4 << 20}}
    assert ("1 large copies to the device came from pageable memory, 1.0 GB/s" in lines(copy)) == told


def test_what_the_program_does_itself_is_told() -> None:
    assert "0.090 s were outside of driver calls" in lines(call("cuInit", 0, 5), call("cuMemAlloc_v2", 95, 5))


def test_a_programs_calls_are_all_there_with_their_times(tmp_path: Path) -> None:
    """The recorder without times, in a second run, is the oracle."""
    program = [sys.executable, str(PROGRAMS / "load_again.py"), "5"]
    traced, recorded = tmp_path / "trace.json", tmp_path / "recording"
    run = [REMOTEGPU, "run", "--native", "--trace", str(traced), "--", *program]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "code" in done.stderr and "5 images" not in done.stderr
    record = [REMOTEGPU, "run", "--native", "--", REMOTEGPU, "trace", "--record", str(recorded), "--", *program]
    subprocess.run(record, capture_output=True, timeout=60, check=True)
    events = [event for event in json.loads(traced.read_text())["traceEvents"] if event["ph"] == "X"]
    assert Counter(event["name"] for event in events) == Counter(it["f"] for it in read(recorded).records)
    ends: dict[int, float] = defaultdict(float)
    for event in sorted(events, key=lambda it: it["ts"]):
        assert event["ts"] >= ends[event["tid"]], "calls of a thread follow each other"
        ends[event["tid"]] = event["ts"] + event["dur"]


def test_a_file_that_cannot_be_written_is_told_before_the_program_runs(tmp_path: Path) -> None:
    run = [REMOTEGPU, "run", "--native", "--trace", str(tmp_path), "--", "touch", str(tmp_path / "ran")]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == exits.USAGE and f"--trace {tmp_path}" in done.stderr
    assert not (tmp_path / "ran").exists()
