"""`remotegpu run` without an appliance brings its own: real worker, gateway, client and software GPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.system import PROGRAMS, REMOTEGPU, until

GIB = 1 << 30
SEEN = """
import json, sys
sys.path.insert(0, {programs!r})
from cu import *
start()
print(json.dumps([ok(cu.cuDeviceGetCount()), ok(cu.cuDeviceTotalMem(0))]))
"""


def run(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    without = {name: value for name, value in os.environ.items() if name != "REMOTEGPU_APPLIANCE"}
    return subprocess.run(
        [REMOTEGPU, "run", *arguments], env=without | (env or {}), capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("native", [True, False], ids=["native", "local appliance"])
@pytest.mark.parametrize(
    ("options", "count", "memory"),
    [
        ([], 1, 8 * GIB),
        (["-p", "0.25"], 1, 2 * GIB),
        (["-n", "2", "-m", "3GiB"], 2, 3 * GIB),
        (["-m", "9GiB"], 1, 9 * GIB),
    ],
    ids=["whole", "fraction", "two by memory", "more than the default"],
)
def test_the_share_is_as_asked(options: list[str], count: int, memory: int, native: bool) -> None:
    where = ["--native"] if native else []
    done = run(*where, *options, "--", sys.executable, "-c", SEEN.format(programs=str(PROGRAMS)))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [count, memory]
    assert done.stderr == ""


def test_the_hostile_profile_can_be_chosen() -> None:
    done = run(
        "-p", "0.5", "--", sys.executable, str(PROGRAMS / "vector_add.py"), env={"REMOTEGPU_SOFTGPU_PROFILE": "hostile"}
    )
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


def descendants(pid: int) -> list[int]:
    direct = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return direct + [below for child in direct for below in descendants(child)]


def test_nothing_stays_when_it_is_killed() -> None:
    process = subprocess.Popen(
        [REMOTEGPU, "run", "-p", "0.25", "--", sys.executable, str(PROGRAMS / "endless_calls.py")],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    pids = descendants(process.pid)
    assert len(pids) >= 4, "the command, the appliance, its gateway, a worker"
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 10, "all of them are gone")
