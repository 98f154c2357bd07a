"""Random programs with memory that host and device share have the bytes that CUDA documents, natively and on a share,
also while the share is cut off, suspended or moved. When a mirror ends, all of it is compared with what the GPU has.

REMOTEGPU_MIRROR_PROGRAMS says how many run each way, REMOTEGPU_MIRROR_SEED which is the first.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Collection, Iterator

import pytest
from support.leases import moved_often, suspended_often
from support.proxied import before_data, cut_often, run
from support.system import PROGRAMS as FOLDER
from support.system import REMOTEGPU, Appliance, appliance

PROGRAM = str(FOLDER / "random_mirrors.py")
PROGRAMS = int(os.environ.get("REMOTEGPU_MIRROR_PROGRAMS", "200"))
FIRST = int(os.environ.get("REMOTEGPU_MIRROR_SEED", "0"))
# So many while the share is disturbed, which takes longer.
DISTURBED = PROGRAMS // 10
SECONDS = 60 + PROGRAMS * 2

MEMORY = {"Allocated", "Registered", "Shared", "Created", "Managed", "Variable"}
HOST = {
    "store", "system_read", "system_receive", "direct_read", "ring_read", "registered_ring_read", "process_write",
    "other_mapping", "forked_child", "child_reads",
}  # fmt: skip
DEVICE = {
    "exchange_words",
    "exchange_behind_a_word",
    "bump_words",
    "copy_words",
    "fill_words",
    "clear_pages",
    "land_words",
}
WAITS = {
    "in_stream", "in_context", "by_event", "by_event_query", "by_stream_query", "by_copy_to_the_host",
    "by_copy_to_the_device", "by_fill", "by_host_function", "by_callback", "by_written_word", "by_unregistering",
}  # fmt: skip
# With a second device and a second process. A share that processes have events of is not moved.
ELSEWHERE = {"wait_by_device", "wait_by_process"}
OTHERS = ["elsewhere"]
ALL = MEMORY | HOST | DEVICE | WAITS


def check(
    run: subprocess.CompletedProcess[str],
    programs: int = PROGRAMS,
    but: Collection[str] = (),
    also: Collection[str] = (),
) -> None:
    results = [json.loads(line) for line in run.stdout.splitlines()]
    wrong = [result for result in results if result["differs"]]
    assert not wrong, f"`random_mirrors.py {wrong[0]['seed']} 1` repeats it: {wrong[0]['differs']}\n{run.stderr}"
    assert (run.returncode, len(results)) == (0, programs), run.stderr
    # No word was written by both sides at once, and no memory was taken away. A connection may be lost.
    assert not re.search("(value|write) is lost", run.stderr), run.stderr
    assert {what for result in results for what in result["did"]} == (ALL | set(also)) - set(but)


@pytest.fixture(autouse=True)
def checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMOTEGPU_CHECK_MIRRORS", "1")


@contextlib.contextmanager
def patient() -> Iterator[Appliance]:
    with appliance("--grace", "60s") as remote:
        yield remote


@pytest.mark.timeout(SECONDS + 30)
def test_natively() -> None:
    command = [
        REMOTEGPU,
        "run",
        "--native",
        "-n",
        "2",
        "--",
        sys.executable,
        PROGRAM,
        str(FIRST),
        str(PROGRAMS),
        *OTHERS,
    ]
    check(subprocess.run(command, capture_output=True, text=True, timeout=SECONDS), also=ELSEWHERE)


@pytest.mark.timeout(SECONDS + 30)
@pytest.mark.parametrize("profile", ["normal", "hostile"])
def test_on_a_share(profile: str) -> None:
    with appliance("--gpus", "2", profile=profile) as remote:
        done = remote.run(PROGRAM, str(FIRST), str(PROGRAMS), *OTHERS, timeout=SECONDS, options=("-n", "2"))
    check(done, also=ELSEWHERE)


@pytest.mark.timeout(SECONDS + 30)
@pytest.mark.parametrize("setting", ["CUDA_LAUNCH_BLOCKING=1", "REMOTEGPU_CARRIER=grpc", "REMOTEGPU_CARRIER=direct"])
def test_on_a_share_otherwise(setting: str) -> None:
    name, value = setting.split("=")
    # A launch that is waited for cannot wait for a word that is written after it.
    but = ["exchange_behind_a_word"] if name == "CUDA_LAUNCH_BLOCKING" else []
    with appliance("--gpus", "2") as remote:
        program = (PROGRAM, str(FIRST), str(DISTURBED), *OTHERS)
        done = remote.run(*program, timeout=SECONDS, env={name: value}, options=("-n", "2"))
    check(done, DISTURBED, but, ELSEWHERE)


@pytest.mark.timeout(SECONDS + 30)
def test_beside_a_device_of_another_appliance() -> None:
    """The program's own process carries the waits of a stream there."""
    with appliance() as one, appliance() as other:
        where = f"{one.endpoint},{other.endpoint}"
        command = [REMOTEGPU, "run", "--appliance", where, "-n", "2", "-p", "0.25", "--", sys.executable]
        program = [PROGRAM, str(FIRST), str(DISTURBED), *OTHERS]
        done = subprocess.run([*command, *program], capture_output=True, text=True, timeout=SECONDS)
    check(done, DISTURBED, also=ELSEWHERE)


@pytest.mark.timeout(SECONDS + 30)
@pytest.mark.parametrize("carrier", ["auto", "direct"])
def test_where_the_kernel_notes_writes(carrier: str) -> None:
    """On one machine the worker writes to allocated memory, too, which the kernel does not note."""
    env = {"REMOTEGPU_TRACK_WRITES": "1", "REMOTEGPU_CARRIER": carrier}
    with appliance() as remote:
        done = remote.run(PROGRAM, str(FIRST), str(PROGRAMS), timeout=SECONDS, env=env)
    assert "REMOTEGPU_TRACK_WRITES" not in done.stderr, done.stderr
    check(done, PROGRAMS, ["direct_read", "registered_ring_read"])


@pytest.mark.parametrize("setting", ["0", "1"])
def test_64_mib_that_are_filled_with_zeros(setting: str) -> None:
    """The software GPU gives the pages of so many zeros back, which the kernel does not note as a write."""
    with appliance() as remote:
        for kind in ("allocated", "registered"):
            env = {"REMOTEGPU_TRACK_WRITES": setting}
            done = remote.run(str(FOLDER / "large_mirror.py"), kind, timeout=120, env=env)
            assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr
            # What the kernel notes is not compared.
            assert ("is compared before each command" in done.stderr) == (setting == "0"), done.stderr


@pytest.mark.timeout(SECONDS + 30)
def test_while_it_is_cut_off_every_200_ms() -> None:
    with patient() as remote, before_data(remote) as data:
        with cut_often(data) as cuts:
            program = run(remote, PROGRAM, str(FIRST), str(DISTURBED))
            output, errors = program.communicate(timeout=SECONDS)
        assert len(cuts) >= 10
    check(subprocess.CompletedProcess(program.args, program.returncode, output, errors), DISTURBED)


@pytest.mark.timeout(SECONDS + 30)
def test_while_it_is_suspended() -> None:
    with patient() as remote, suspended_often(remote) as times:
        check(remote.run(PROGRAM, str(FIRST), str(DISTURBED), timeout=SECONDS), DISTURBED)
        assert len(times) >= 2


@pytest.mark.timeout(SECONDS + 30)
def test_while_it_is_moved() -> None:
    with patient() as one, patient() as other, moved_often(one, other) as times:
        check(one.run(PROGRAM, str(FIRST), str(DISTURBED), timeout=SECONDS), DISTURBED)
        assert len(times) >= 2
