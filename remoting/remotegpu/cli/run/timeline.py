"""The output of `remotegpu run --trace FILE`: times of a program's driver calls, for Perfetto, and advice. Pure.

The file has Chrome's Trace Event Format, which ui.perfetto.dev and chrome://tracing read: a complete event (`ph` X) for
each call, times in microseconds.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from remotegpu.api.quantities import format_bytes
from remotegpu.cli.run.trace import Record, Recording

# The kind of a function is the first one with a matching prefix.
_KINDS: Final = (
    ("wait", ("cuStreamSynchronize", "cuCtxSynchronize", "cuEventSynchronize")),
    ("launch", ("cuLaunch", "cuGraphLaunch")),
    ("copy", ("cuMemcpy", "cuMemset", "cuMemPrefetch")),
    ("code", ("cuModule", "cuLibrary", "cuKernelGetFunction", "cuFuncLoad", "cuLink")),
    ("memory", ("cuMemAlloc", "cuMemFree", "cuMemHost", "cuMemCreate", "cuMemMap", "cuMemUnmap", "cuMemRelease")),
    ("start", ("cuInit", "cuDevicePrimaryCtxRetain", "cuCtxCreate")),
)
_OTHER: Final = "other"
# The largest size of a copy of only a few numbers.
_FEW_BYTES: Final = 64
_LARGE_BYTES: Final = 1 << 20
# Advice is given only for a larger part of the time, and for more frequent calls.
_WORTH: Final = 0.05
_OFTEN: Final = 10


@dataclass(slots=True)
class Sum:
    calls: int = 0
    nanoseconds: int = 0
    bytes: int = 0

    def add(self, record: Record) -> None:
        self.calls += 1
        self.nanoseconds += record["took"]
        self.bytes += _bytes(record)

    @property
    def seconds(self) -> float:
        return self.nanoseconds / 1e9


@dataclass(slots=True)
class Summary:
    """Sums over the threads of all processes. A sum may exceed `seconds`, since threads call concurrently."""

    seconds: float = 0.0
    """From the first call's begin to the last one's end."""
    kinds: dict[str, Sum] = field(default_factory=lambda: defaultdict(Sum))
    small_reads: Sum = field(default_factory=Sum)
    """Copies of a few bytes to the host, and the waits right behind them."""
    pageable: Sum = field(default_factory=Sum)
    """Large copies to the device from memory that is not page-locked."""


def kind(function: str) -> str:
    return next((name for name, prefixes in _KINDS if function.startswith(prefixes)), _OTHER)


def events(recordings: Sequence[Recording]) -> dict[str, Any]:
    """Returns the document for Perfetto, with a process for each recording."""
    first = min((recording.header["began"] for recording in recordings), default=0)
    found: list[dict[str, Any]] = []
    for pid, recording in enumerate(recordings, 1):
        found.append(_name("process_name", pid, 0, " ".join(map(str, recording.header.get("program", ())))))
        threads: dict[str, int] = {}
        for record in _timed(recording):
            thread = str(record.get("t"))
            if thread not in threads:
                threads[thread] = len(threads) + 1
                found.append(_name("thread_name", pid, threads[thread], thread))
            found.append(
                {
                    "ph": "X",
                    "name": record["f"],
                    "cat": kind(record["f"]),
                    "pid": pid,
                    "tid": threads[thread],
                    "ts": (recording.header["began"] - first + record["start"]) / 1e3,
                    "dur": record["took"] / 1e3,
                    "args": {"in": record["in"], "code": record["code"]},
                }
            )
    return {"displayTimeUnit": "ns", "traceEvents": found}


def summary(recordings: Sequence[Recording]) -> Summary:
    result = Summary()
    begins, ends = [], []
    for recording in recordings:
        # For each thread, whether its last copy to the host had only a few bytes.
        reads: dict[str, bool] = {}
        for record in _timed(recording):
            begins.append(recording.header["began"] + record["start"])
            ends.append(begins[-1] + record["took"])
            # The time of a nested call is a part of the outer call.
            if record.get("nested"):
                continue
            function, thread = record["f"], str(record.get("t"))
            result.kinds[kind(function)].add(record)
            if function.startswith("cuMemcpyDtoH"):
                reads[thread] = _bytes(record) <= _FEW_BYTES
                if reads[thread]:
                    result.small_reads.add(record)
            elif kind(function) == "wait" and reads.pop(thread, False):
                result.small_reads.nanoseconds += record["took"]
            elif function.startswith("cuMemcpyHtoD") and _bytes(record) >= _LARGE_BYTES and _is_pageable(record):
                result.pageable.add(record)
    result.seconds = (max(ends, default=0) - min(begins, default=0)) / 1e9
    return result


def report(found: Summary) -> Iterator[str]:
    """Yields lines for people about the use of the time, and advice."""
    calls = sum(each.nanoseconds for each in found.kinds.values()) / 1e9
    yield f"{found.seconds:.3f} s from the first driver call to the last one's end, {calls:.3f} s of them in calls:"
    for name, total in sorted(found.kinds.items(), key=lambda item: -item[1].nanoseconds):
        size = f", {format_bytes(total.bytes)}" if name == "copy" else ""
        yield f"  {name:7}{total.seconds:9.3f} s  {total.calls} calls{size}"
    yield from _advice(found, calls)


def _advice(found: Summary, calls: float) -> Iterator[str]:
    worth = _WORTH * found.seconds
    reads, waits, launches = found.small_reads, found.kinds["wait"], found.kinds["launch"]
    if reads.seconds > worth and reads.calls >= _OFTEN:
        yield (
            f"{reads.calls} copies of a few bytes to the host took {reads.seconds:.3f} s with the waits behind them: "
            "each (.item(), float(), printing a tensor, an `if` of one) waits for the GPU. Ask less often, or for many "
            "values at once."
        )
    elif waits.seconds > worth and waits.calls >= _OFTEN and launches.calls < 10 * waits.calls:
        yield (
            f"{waits.calls} waits for {launches.calls} launches took {waits.seconds:.3f} s: each is a round trip at "
            "least. Wait once behind many launches."
        )
    if found.pageable.seconds > worth:
        rate = found.pageable.bytes / max(found.pageable.nanoseconds, 1)
        yield (
            f"{found.pageable.calls} large copies to the device came from pageable memory, {rate:.1f} GB/s: use "
            "page-locked memory (torch: pin_memory, non_blocking=True), so that they do not hold up the program."
        )
    if (code := found.kinds["code"]).seconds > worth:
        yield f"loading of code took {code.seconds:.3f} s: import what is used alone, and keep compilers' caches."
    if (memory := found.kinds["memory"]).seconds > worth and memory.calls >= _OFTEN:
        yield f"{memory.calls} calls of the allocator took {memory.seconds:.3f} s: keep memory in a pool."
    if calls < found.seconds / 2:
        yield f"{found.seconds - calls:.3f} s were outside of driver calls: in the program itself."


def _timed(recording: Recording) -> Iterator[Record]:
    return (record for record in recording.records if "took" in record)


def _name(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _bytes(record: Record) -> int:
    size = record["in"].get("bytes")
    return size if isinstance(size, int) else 0


def _is_pageable(record: Record) -> bool:
    """Whether a copy is from pageable memory. Then `from` describes the bytes; page-locked memory has a name there."""
    return isinstance(record["in"].get("from"), Mapping)
