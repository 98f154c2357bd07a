"""Recordings of real programs, their replays, and the command line's reports about them."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from compiled_programs import building
from support import tracer
from support.system import DIST, PROGRAMS, REMOTEGPU, Appliance, appliance

RECORDER = DIST / "trace" / "libcuda.so.1"
ALWAYS = ("driver_copies.c", "per_thread.cu")
COMPILED = ("driver_streams.c", "virtual_memory.c", "callbacks.cu", *ALWAYS)
NATIVE = (REMOTEGPU, "run", "--native", "--")
DIVERGED = 65

pytestmark = pytest.mark.skipif(not RECORDER.exists(), reason="the recorder is not built (make build)")


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    line = [str(part) for part in command]
    return subprocess.run(line, capture_output=True, text=True, timeout=120, env=os.environ | environment, check=False)


def python(name: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, str(PROGRAMS / name), *arguments)


def record(file: Path, *command: str | Path, contents: bool = True, under: tuple[str, ...] = NATIVE) -> str:
    """Records a run that has to work. Returns its output."""
    options = ("--contents",) if contents else ()
    recorded = run(*under, REMOTEGPU, "trace", "--record", file, *options, "--", *command)
    assert recorded.returncode == 0, recorded.stderr
    return recorded.stdout


def replay(file: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs without any driver: a libcuda.so.1 that is found would be no library."""
    return run(REMOTEGPU, "trace", "--replay", file, "--", *command, REMOTEGPU_TRACE_DRIVER="/dev/null")


def calls(file: Path) -> Counter[str]:
    written, _, _ = file.read_bytes().partition(b"\0")
    records = [json.loads(line) for line in written.split(b"\n")[1:-1]]
    return Counter(record["f"] for record in records if record["f"].startswith("cu"))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    toolkit = building.toolkit()
    if toolkit is None:
        pytest.skip("no nvcc in this environment")
    folder = tmp_path_factory.mktemp("programs")
    return functools.cache(lambda source: building.build(source, folder, toolkit))


@pytest.mark.parametrize("name", ["vector_add.py", "callbacks.py", "mapped_memory.py"])
def test_a_replay_prints_what_the_program_printed(tmp_path: Path, name: str) -> None:
    printed = record(tmp_path / "trace", *python(name))
    again = replay(tmp_path / "trace", *python(name))
    assert (again.returncode, again.stdout) == (0, printed), again.stderr


@pytest.mark.parametrize(
    "source", [pytest.param(name, marks=() if name in ALWAYS else pytest.mark.thorough) for name in COMPILED]
)
def test_a_replay_answers_compiled_programs(tmp_path: Path, compiled: Callable[[str], Path], source: str) -> None:
    """Static cudart, its private tables, eight threads in any order, host functions, per-thread streams."""
    assert record(tmp_path / "trace", compiled(source)) == "ok\n"
    for _ in range(3 if source == "per_thread.cu" else 1):
        again = replay(tmp_path / "trace", compiled(source))
        assert (again.returncode, again.stdout) == (0, "ok\n"), again.stderr


@pytest.mark.parametrize("name", ["vector_add.py", "per_thread.cu"])
def test_every_call_is_recorded(tmp_path: Path, compiled: Callable[[str], Path], name: str) -> None:
    """The tracer is above the recorder, knows nothing of it, and counts the same calls."""
    command = python(name) if name.endswith(".py") else (str(compiled(name)),)
    above = tracer.build(RECORDER, tmp_path / "tracer")
    variables = tracer.environment(above, RECORDER, tmp_path / "counts.json")
    below = {"REMOTEGPU_TRACE_DRIVER": str(DIST / "native" / "libcuda.so.1")}
    traced = run(*command, **variables, **below, REMOTEGPU_TRACE_RECORD=str(tmp_path / "trace"))
    assert traced.returncode == 0, traced.stderr
    counts = {name: n for name, n in json.loads((tmp_path / "counts.json").read_text()).items() if n}
    assert calls(tmp_path / "trace") == counts
    assert sum(counts.values()) > 500


PROGRAM = f"""
import sys
sys.path.insert(0, {str(PROGRAMS)!r})
import numpy as np
from cu import cu, download, ok, start, upload
start()
count, last = int(sys.argv[1]), int(sys.argv[2])
memory = upload(np.arange(count, dtype=np.uint32))
if last:
    print(download(memory, count, np.uint32).sum())
"""


@pytest.fixture(scope="module")
def simple(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A program that takes its commands from its arguments, and a recording of it with 100 numbers."""
    folder = tmp_path_factory.mktemp("simple")
    program = folder / "program.py"
    program.write_text(PROGRAM)
    assert record(folder / "trace", sys.executable, program, "100", "1") == "4950\n"
    return program, folder / "trace"


def test_another_call_ends_the_program_with_one_sentence(simple: tuple[Path, Path]) -> None:
    program, trace = simple
    other = replay(trace, sys.executable, program, "101", "1")
    assert (other.returncode, other.stdout) == (DIVERGED, "")
    theirs, ours = (rf"cuMemAlloc_v2\{{\"bytes\":{size}\}}" for size in (400, 404))
    expected = rf"record (\d+) is {theirs}, but the program calls {ours} \(`bytes` differs\)\n$"
    found = re.search(expected, other.stderr)
    assert found and other.stderr.count("\n") == 1, other.stderr
    assert "cuMemAlloc_v2" in trace.read_text().splitlines()[int(found[1]) - 1]


def test_a_program_that_ends_early_is_reported(simple: tuple[Path, Path]) -> None:
    program, trace = simple
    early = replay(trace, sys.executable, program, "100", "0")
    assert early.returncode == DIVERGED
    assert re.search(r"ended before record \d+, cuMemcpyDtoH_v2", early.stderr), early.stderr


def test_without_contents_nothing_is_made_up(tmp_path: Path, simple: tuple[Path, Path]) -> None:
    record(tmp_path / "trace", sys.executable, simple[0], "100", "1", contents=False)
    without = replay(tmp_path / "trace", sys.executable, simple[0], "100", "1")
    assert (without.returncode, without.stdout) == (DIVERGED, "")
    assert "400 bytes" in without.stderr and "--contents" in without.stderr


def test_recorded_bytes_are_the_answer(tmp_path: Path, simple: tuple[Path, Path]) -> None:
    """A number that is changed in the file is the number that the program reads."""
    program, trace = simple
    text = trace.read_text()
    contents = "".join(n.to_bytes(4, "little").hex() for n in range(100))
    assert text.count(contents) == 1
    (tmp_path / "trace").write_text(text.replace(contents, "0a" + contents[2:]))
    assert replay(tmp_path / "trace", sys.executable, program, "100", "1").stdout == "4960\n"


def test_a_killed_program_leaves_every_call_that_returned(tmp_path: Path) -> None:
    trace, program = tmp_path / "trace", tmp_path / "program.py"
    loop = (
        "print(os.getpid(), flush=True)\nwhile True:\n    ok(cu.cuCtxGetDevice())\n    print('.', end='', flush=True)\n"
    )
    program.write_text("import os" + PROGRAM.split("count, last")[0] + loop)
    line = [*NATIVE, REMOTEGPU, "trace", "--record", str(trace), "--", sys.executable, str(program)]
    with subprocess.Popen(line, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        printed = process.stdout.read(2000)
        os.kill(pid, signal.SIGKILL)
        printed += process.stdout.read()
    made = calls(trace)["cuCtxGetDevice"]
    assert len(printed) <= made <= len(printed) + 1
    shown = run(REMOTEGPU, "trace", "--show", trace)
    assert shown.returncode == 0 and shown.stdout.count("cuCtxGetDevice()") == made


def test_a_torn_record_is_recognised(tmp_path: Path, simple: tuple[Path, Path]) -> None:
    torn = tmp_path / "trace"
    torn.write_bytes(simple[1].read_bytes()[:-20] + bytes(100))
    assert run(REMOTEGPU, "trace", "--show", torn).stdout.splitlines()[-1].startswith("the last record is torn")
    other = replay(torn, sys.executable, simple[0], "100", "1")
    assert other.returncode == DIVERGED and "cuMemcpyDtoH_v2" in other.stderr, other.stderr


@pytest.fixture(scope="module")
def share() -> Iterator[Appliance]:
    with appliance() as it:
        yield it


# Functions that only one of the two provides, as cuGetProcAddress answers: REPORT.md lists these.
ALLOWED = {"cuGetProcAddress_v2"}


@pytest.mark.parametrize("bed", ["hostile", "share"])
def test_runs_differ_only_in_what_is_provided(
    tmp_path: Path, simple: tuple[Path, Path], request: pytest.FixtureRequest, bed: str
) -> None:
    program, first = simple
    under: tuple[str, ...] = NATIVE
    if bed == "share":
        under = (REMOTEGPU, "run", "--appliance", request.getfixturevalue("share").endpoint, "-p", "0.25", "--")
    if bed == "hostile":
        under = ("env", "REMOTEGPU_SOFTGPU_PROFILE=hostile", *NATIVE)
    record(tmp_path / "trace", sys.executable, program, "100", "1", under=under, contents=False)
    compared = run(REMOTEGPU, "trace", "--compare", first, tmp_path / "trace")
    by_function = re.findall(r"^(cu\w+): ", compared.stdout, re.MULTILINE)
    assert set(by_function) <= (ALLOWED if bed == "share" else set()), compared.stdout
    assert compared.returncode == (DIVERGED if by_function else 0), compared.stdout


def test_compare_names_the_first_difference(tmp_path: Path, simple: tuple[Path, Path]) -> None:
    program, first = simple
    record(tmp_path / "trace", sys.executable, program, "101", "0")
    compared = run(REMOTEGPU, "trace", "--compare", first, tmp_path / "trace")
    assert compared.returncode == DIVERGED
    lines = compared.stdout.splitlines()
    assert lines[0] == "thread main: another argument `bytes`"
    assert "cuMemAlloc_v2(bytes=400)" in lines[1] and "cuMemAlloc_v2(bytes=404)" in lines[2]
    assert lines[3:] == ["cuMemcpyDtoH_v2: 1 x code 0 | not called"]


def test_processes_have_files_of_their_own(tmp_path: Path, simple: tuple[Path, Path]) -> None:
    trace, twice = tmp_path / "trace", tmp_path / "twice.sh"
    twice.write_text(f"{sys.executable} {simple[0]} 10 1\n{sys.executable} {simple[0]} 20 1\n")
    assert record(trace, "sh", twice) == "45\n190\n"
    first, second = trace.read_text(), (tmp_path / "trace.2").read_text()
    assert '{"bytes":40}' in first and '{"bytes":80}' in second and '{"bytes":80}' not in first
    assert replay(trace, "sh", twice).stdout == "45\n190\n"


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ((), ["--record", "--replay", "--show", "--compare"]),
        (("--record", "x"), ["--record"]),
        (("--show", "/dev/null"), ["/dev/null"]),
        (("--show", "/nonexistent"), ["/nonexistent"]),
        (("--replay", "x", "--contents", "--", "true"), ["--contents", "--record"]),
    ],
)
def test_mistakes_are_one_line(arguments: tuple[str, ...], names: list[str]) -> None:
    wrong = run(REMOTEGPU, "trace", *arguments)
    assert wrong.returncode == 2 and wrong.stderr.count("\n") == 1, wrong.stderr
    assert all(name in wrong.stderr for name in names), wrong.stderr


def test_a_program_without_calls_is_reported(tmp_path: Path) -> None:
    silent = run(*NATIVE, REMOTEGPU, "trace", "--record", tmp_path / "trace", "--", "true")
    assert silent.returncode == 70 and silent.stderr.count("\n") == 1
