"""The command `remotegpu trace`: records, replays, shows and compares driver calls (format: docs/trace-format.md)."""

import contextlib
import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from remotegpu.api import names
from remotegpu.cli import exits
from remotegpu.cli.run.child import block_signals, find_command, run_child
from remotegpu.frameworks import prepend
from remotegpu.paths import Dist, find_dist

Record: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Recording:
    header: Record
    records: Sequence[Record]
    torn: bool


def run_traced(command: Sequence[str], variable: str, file: Path, *, contents: bool) -> int:
    """Runs a command under the recorder. Returns the result of `run_child`. `variable` says how to use `file`."""
    mask = block_signals()
    find_command(command[0], os.environ.get("PATH"))
    told = {variable: str(file.resolve())} | ({names.TRACE_CONTENTS_ENV: "1"} if contents else {})
    with under_recorder(dict(os.environ) | told, find_dist()) as environment:
        return run_child(command, environment, mask)


@contextlib.contextmanager
def under_recorder(base: Mapping[str, str], dist: Dist) -> Iterator[dict[str, str]]:
    """Yields the environment of a program that calls the driver through the recorder. `base` configures it."""
    with tempfile.TemporaryDirectory(prefix="remotegpu-trace-") as claims:
        environment = dict(base) | {names.TRACE_CLAIMS_ENV: claims}
        # Preloaded, so that every lookup of libcuda.so.1 finds the recorder first.
        prepend(environment, "LD_PRELOAD", str(dist.library(dist.trace)))
        yield environment


@contextlib.contextmanager
def timed(base: Mapping[str, str], dist: Dist, recordings: list[Recording]) -> Iterator[dict[str, str]]:
    """Yields the environment of `under_recorder`. After the block `recordings` has the timed calls of all processes."""
    with tempfile.TemporaryDirectory(prefix="remotegpu-trace-") as folder:
        file = Path(folder, "recording")
        told = {names.TRACE_RECORD_ENV: str(file), names.TRACE_TIMES_ENV: "1"}
        with under_recorder(dict(base) | told, dist) as environment:
            yield environment
        recordings += [read(each) for each in sorted(file.parent.iterdir())]


def record(command: Sequence[str], file: Path, *, contents: bool) -> int:
    try:
        file.unlink(missing_ok=True)
        for further in file.parent.glob(f"{file.name}.*[0-9]"):
            if further.suffix[1:].isdigit():
                further.unlink()
    except OSError as error:
        raise exits.CliError(exits.USAGE, f"{file} cannot be written anew: {error.strerror}") from None
    code = run_traced(command, names.TRACE_RECORD_ENV, file, contents=contents)
    if not file.exists():
        raise exits.CliError(exits.SOFTWARE, f"{command[0]} made no driver call, so that there is no {file}")
    return code


def replay(command: Sequence[str], file: Path) -> int:
    read(file)
    return run_traced(command, names.TRACE_REPLAY_ENV, file, contents=False)


def read(file: Path) -> Recording:
    """Reads a recording. Raises CliError, which names an invalid line."""
    try:
        written, _, _ = file.read_bytes().partition(b"\0")
    except OSError as error:
        raise exits.CliError(exits.USAGE, f"{file}: {error.strerror}") from None
    *lines, rest = written.split(b"\n")
    parsed = [_line(file, number, line) for number, line in enumerate(lines, 1)]
    if not parsed or parsed[0].get("remotegpu trace") != 1:
        raise exits.CliError(exits.USAGE, f"{file} is not a recording of `remotegpu trace` of version 1")
    for number, line in enumerate(parsed[1:], 2):
        if not (
            isinstance(line.get("f"), str) and isinstance(line.get("in"), dict) and isinstance(line.get("code"), int)
        ):
            raise exits.CliError(exits.USAGE, f"{file}: line {number} is not a record")
    return Recording(parsed[0], parsed[1:], torn=bool(rest))


def _line(file: Path, number: int, line: bytes) -> Record:
    try:
        parsed = json.loads(line)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise exits.CliError(exits.USAGE, f"{file}: line {number} is not a JSON object")
    return parsed


def show(recording: Recording) -> Iterator[str]:
    """Yields a line for each record: number, thread, call, error code, results."""
    yield f"driver {recording.header.get('driver')}, CUDA {recording.header.get('version')}"
    for number, record in enumerate(recording.records, 2):
        answers = f" {_fields(record['out'])}" if record.get("out") else ""
        arrived = "".join(f" [{it.get('at')} of {it.get('of')}]" for it in record.get("arrived", ()))
        yield f"{number:6} {record.get('t')} {call(record)} -> {record['code']}{answers}{arrived}"
    if recording.torn:
        yield "the last record is torn: the program was killed while it was written"


def call(record: Record) -> str:
    return f"{record['f']}({_fields(record['in'])})"


def _fields(fields: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_value(value)}" for name, value in fields.items())


def _value(value: object) -> str:
    match value:
        case None:
            return "null"
        case {"bytes": size, "hash": digest}:
            return f"{size} bytes {digest}"
        case dict():
            return f"{{{_fields(value)}}}"
        case list():
            return f"[{', '.join(map(_value, value))}]"
        case str() if len(value) > 64:
            return f"{value[:61]}..."
    return str(value)


@dataclass(frozen=True, slots=True)
class Comparison:
    first: str
    """The first difference; empty where there is none."""
    functions: Sequence[str]
    """A sentence for each function whose calls or codes differ in number."""


def compare(first: Recording, second: Recording) -> Comparison:
    """Compares the calls and results of two runs of one program, thread by thread."""
    ours, theirs = _threads(first), _threads(second)
    differences = (_first_difference(thread, ours.get(thread, []), theirs.get(thread, [])) for thread in ours | theirs)
    found = sorted(difference for difference in differences if difference is not None)
    return Comparison(found[0][1] if found else "", list(_by_function(first.records, second.records)))


def _threads(recording: Recording) -> dict[str, list[tuple[int, Record]]]:
    threads: dict[str, list[tuple[int, Record]]] = {}
    for number, record in enumerate(recording.records, 2):
        if not record.get("nested"):
            threads.setdefault(str(record.get("t")), []).append((number, record))
    return threads


def _first_difference(
    thread: str, ours: list[tuple[int, Record]], theirs: list[tuple[int, Record]]
) -> tuple[int, str] | None:
    for (number, a), (other, b) in zip(ours, theirs, strict=False):
        if part := _difference(a, b):
            return number, f"thread {thread}: {part}\n  {number}: {_line_of(a)}\n  {other}: {_line_of(b)}"
    if len(ours) != len(theirs):
        longer, which = (ours, "second") if len(ours) > len(theirs) else (theirs, "first")
        number, record = longer[min(len(ours), len(theirs))]
        return number, f"thread {thread}: only the {which} recording ends here\n  {number}: {_line_of(record)}"
    return None


def _difference(a: Record, b: Record) -> str:
    if a["f"] != b["f"]:
        return "another function"
    for part, meaning in (("in", "argument"), ("code", "code"), ("out", "answer")):
        if _plain(a.get(part)) == _plain(b.get(part)):
            continue
        if part == "code":
            return "another code"
        one, other = a.get(part) or {}, b.get(part) or {}
        which = next(name for name in [*one, *other] if _plain(one.get(name)) != _plain(other.get(name)))
        return f"another {meaning} `{which}`"
    return ""


def _plain(value: object) -> object:
    """Removes contents of memory, which only one recording may have. Their hash stays."""
    if isinstance(value, dict):
        return {name: _plain(field) for name, field in value.items() if name != "contents"}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _line_of(record: Record) -> str:
    answers = f" {_fields(record['out'])}" if record.get("out") else ""
    return f"{call(record)} -> {record['code']}{answers}"


def _by_function(first: Iterable[Record], second: Iterable[Record]) -> Iterator[str]:
    ours, theirs = (Counter((r["f"], r["code"]) for r in records) for records in (first, second))
    for function in sorted({name for name, _ in ours | theirs}):
        mine, others = (_codes(counts, function) for counts in (ours, theirs))
        if mine != others:
            yield f"{function}: {mine or 'not called'} | {others or 'not called'}"


def _codes(counts: Mapping[tuple[str, int], int], function: str) -> str:
    found = sorted((code, count) for (name, code), count in counts.items() if name == function)
    return ", ".join(f"{count} x code {code}" for code, count in found)
