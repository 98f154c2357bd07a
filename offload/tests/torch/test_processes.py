"""Threads and processes of one program: all threads have the device, and each process that it starts has its own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from offload_armed import Programs

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(400)]

FORKED = (
    "OffloadError: this process was forked from one that has a remote device, and has none itself, as with CUDA. Keep "
    "its tensors on the CPU, or start it with multiprocessing's method 'spawn'"
)

# The findings of a process: a result, and which session it has.
_FOUND = """
import multiprocessing, os, subprocess, sys, torch

def found(given=None):
    from remotegpu_offload.client import session
    try:
        given = torch.ones(2, device="cuda") if given is None else given
        total = (given + 1).sum().item()
        mine = session.current()
        return [total, mine.id, mine.environment.backend]
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]
"""

_CHILDREN = (
    _FOUND
    + """
at_import = torch.ones(3, device="cuda").sum().item()

def tell(answers):
    answers.put(found())

def main():
    told = {"main": found()}
    context = multiprocessing.get_context("forkserver")
    answers = context.SimpleQueue()
    child = context.Process(target=tell, args=(answers,))
    child.start()
    child.join(300)
    told["forkserver"] = answers.get() if child.exitcode == 0 else [child.exitcode]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        told["spawn"] = pool.apply_async(found).get(300)
    code = "import json, children; print(json.dumps(children.found()))"
    told["command"] = json.loads(subprocess.check_output([sys.executable, "-c", code], timeout=300))
    return told

import json
if __name__ == "__main__":
    print(json.dumps(main()))
"""
)

_FORKED = (
    _FOUND
    + """
import json

def in_a_fork(*given):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, json.dumps(found(*given)).encode())
        os._exit(0)
    os.close(write)
    with open(read) as file:
        told = json.load(file)
    os.waitpid(child, 0)
    return told

torch.cuda.manual_seed(3)
early = in_a_fork()
mine = torch.ones(2, device="cuda")
told = {"early": early, "main": found(), "late": in_a_fork(), "with mine": in_a_fork(mine), "then": found(mine)}
print(json.dumps(told))
"""
)


def test_the_first_use_by_many_threads_opens_one_device(programs: Programs) -> None:
    _same_in_threads(programs, "--threads", "8")


def test_threads_find_what_they_find_on_the_cpu_and_leave_nothing(programs: Programs) -> None:
    _same_in_threads(programs, "--threads", "5", "--steps", "12")


def _same_in_threads(programs: Programs, *options: str) -> None:
    here = programs.on_cpu("threads", *options)
    remote, _ = programs.on_remote("threads", *options)
    assert not remote["failed"] and not here["failed"]
    for ours, theirs in zip(remote["results"], here["results"], strict=True):
        for got, want in zip(ours, theirs, strict=True):
            assert got == pytest.approx(want, rel=1e-3, abs=1e-3)
    assert remote["held"] == 0


def _run(programs: Programs, name: str, text: str, *options: str) -> dict[str, Any]:
    """Runs a program with `offload run` and these options, and returns what it writes."""
    (programs.folder / name).write_text(text)
    environment = os.environ | {
        "REMOTEGPU_CONNECT": str(programs.connect),
        "PYTHONPATH": os.pathsep.join([str(programs.folder), *filter(None, sys.path)]),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "remotegpu_offload.launch", *options, name]
    ran = subprocess.run(
        command, check=False, env=environment, cwd=programs.folder, timeout=350, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def test_processes_that_a_program_starts_have_sessions_of_their_own(
    programs: Programs,
    tmp_path: Path,
) -> None:
    (tmp_path / "other.yaml").write_text("version: 1\noffload:\n  - torch: {devices: [cuda]}\n")
    told = _run(programs, "children.py", _CHILDREN, "--split", "torch", "--config", "other.yaml", "--backend", "cpu")
    assert set(told) == {"main", "forkserver", "spawn", "command"}
    assert [found[0] for found in told.values()] == [4.0] * 4, told
    assert len({found[1] for found in told.values()}) == 4
    assert {found[2] for found in told.values()} == {"cpu"}


def test_a_process_forked_before_the_device_was_open_has_its_own(programs: Programs) -> None:
    told = _run(programs, "forks.py", _FORKED)
    assert told["early"][0] == told["main"][0] == told["then"][0] == 4.0
    assert told["main"][1] == told["then"][1] != told["early"][1]
    assert told["late"] == told["with mine"] == [FORKED]
