"""A training step costs one round trip per call that waits for the GPU, by an independent count; polling costs none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import tracer
from support.system import DIST, PRELOADED, ROOT, Appliance, appliance, native, until

TRAIN = [sys.executable, str(ROOT / "examples" / "01-digits" / "train.py")]


def statistics(remote: Appliance, out: Path, *program: str) -> dict[str, Any]:
    run = remote.run(*program, env={"REMOTEGPU_STATS": str(out)}, timeout=300)
    assert run.returncode == 0, run.stderr
    counted: dict[str, Any] = json.loads(out.read_text())
    return counted


def test_polling_an_event_makes_one_round_trip_however_often_it_is_recorded(remote: Appliance, tmp_path: Path) -> None:
    once, often = (statistics(remote, tmp_path / n, "query_events.py", n) for n in ("1", "50"))
    assert often["round_trips"] == once["round_trips"]


def test_what_a_wait_has_told_is_not_asked(remote: Appliance, tmp_path: Path) -> None:
    once, often = (statistics(remote, tmp_path / n, "query_complete.py", n) for n in ("1", "11"))
    waits = 7
    assert often["round_trips"] - once["round_trips"] == 10 * waits


def test_an_idle_wait_makes_no_round_trip(remote: Appliance, tmp_path: Path) -> None:
    once, often = (statistics(remote, tmp_path / n, "idle_waits.py", n) for n in ("1", "101"))
    assert often["round_trips"] == once["round_trips"]
    assert often["calls"] - once["calls"] == 100 * 9


def test_what_many_streams_have_completed_holds_nobody_up(remote: Appliance, tmp_path: Path) -> None:
    """Sixty streams have more together than a session may have in its queues, but not at one time."""
    counted = statistics(remote, tmp_path / "statistics", "many_streams.py")
    fills = 60 * 1000
    assert counted["calls"] > fills
    assert fills < counted["commands"] < fills + 1000


def mirrors(steps: int, *how: str) -> tuple[str, ...]:
    return ("mirrored_words.py", "104", "1024", str(steps), "7", *how)


def test_a_wait_brings_the_words_of_all_mirrors_with_its_answer(remote: Appliance, tmp_path: Path) -> None:
    once, often = (statistics(remote, tmp_path / str(n), *mirrors(n, "in_stream")) for n in (20, 60))
    assert often["round_trips"] - once["round_trips"] == 40
    grown = {what: (often[what] - once[what]) / 40 for what in ("commands", "bytes_sent", "bytes_received")}
    # Changes of all of them in few commands, an event, a launch and the wait, now and then a fence of the queue; of 104
    # buffers of 4 KiB what changed.
    assert grown["commands"] <= 13
    assert grown["bytes_sent"] < 16_000 and grown["bytes_received"] < 16_000


def test_a_wait_with_mirrors_that_nothing_changed_costs_no_byte_more(remote: Appliance, tmp_path: Path) -> None:
    none, many = (statistics(remote, tmp_path / n, "waits_beside_mirrors.py", n, "50") for n in ("0", "104"))
    added = 104
    assert many["round_trips_of"]["cuMemHostGetDevicePointer_v2"] <= added + 2
    assert many["round_trips_of"]["cuStreamSynchronize"] == none["round_trips_of"]["cuStreamSynchronize"] == 50
    assert many["bytes_received"] - none["bytes_received"] < 150 * added
    variables = statistics(remote, tmp_path / "variables", "waits_beside_mirrors.py", "0", "50", "3")
    assert variables["round_trips_of"]["cuStreamSynchronize"] == 50


@pytest.mark.parametrize("carrier", ["direct", "grpc", "own"])
def test_the_words_of_mirrors_are_right_after_a_wait_of_each_kind(remote: Appliance, carrier: str) -> None:
    """When a mirror ends, all of it is compared with what the GPU has."""
    env = {"REMOTEGPU_CHECK_MIRRORS": "1"} | ({} if carrier == "own" else {"REMOTEGPU_CARRIER": carrier})
    for shape in ("104 1024 140 3 each", "9 300000 28 4 each", "20 1024 70 5 each 4"):
        run = remote.run("mirrored_words.py", *shape.split(), env=env)
        assert (run.returncode, run.stdout) == (0, "ok\n"), run.stderr


@pytest.mark.parametrize("how", ["wait", "ask"])
def test_a_kernel_that_polls_page_locked_memory_sees_what_the_host_sets(remote: Appliance, how: str) -> None:
    run = remote.run("spin_on_page_locked.py", how, timeout=60)
    assert (run.returncode, run.stdout) == (0, "ok\n"), run.stderr


def test_page_locked_memory_is_right_after_a_launch_that_blocks(remote: Appliance) -> None:
    run = remote.run("read_after_a_launch.py", env={"CUDA_LAUNCH_BLOCKING": "1"})
    assert (run.returncode, run.stdout) == (0, "ok\n"), run.stderr


def test_mirrors_beyond_what_an_appliance_keeps_are_fetched_whole() -> None:
    with appliance("--session-budget", "mirror-bytes=100000") as one:
        run = one.run(*mirrors(28, "each"))
    assert (run.returncode, run.stdout) == (0, "ok\n"), run.stderr
    assert run.stderr.count("bytes of mirrors") == 1, run.stderr


def test_words_of_mirrors_are_right_natively() -> None:
    run = native(*mirrors(28, "each"))
    assert (run.returncode, run.stdout) == (0, "ok\n"), run.stderr


def test_idle_waits_are_as_natively() -> None:
    run = native("idle_waits.py", "3")
    assert (run.returncode, run.stdout) == (0, "ok\n"), run.stderr


@pytest.mark.parametrize("how", ["asked", "followed"])
def test_a_late_error_is_told_once_by_whatever_tells_that_work_is_complete(how: str) -> None:
    with appliance("--session-budget", "streams=3") as one:
        run = one.run("late_once.py", how)
    codes = [int(code) for code in run.stdout.split()]
    assert (run.returncode, sorted(codes)) == (0, [0, 0, 0, 0, 2]), run.stderr
    assert 2 in codes[:2], codes


def test_an_error_is_told_once_or_by_everything_natively() -> None:
    run = native("told_once.py")
    assert (run.returncode, run.stdout) == (0, "ok\n"), run.stderr


@pytest.mark.parametrize("carrier", ["auto", "direct", "grpc"])
@pytest.mark.parametrize(("profile", "argument"), [("normal", ()), ("hostile", ("late",))])
def test_an_error_is_told_once_or_by_everything(profile: str, argument: tuple[str, ...], carrier: str) -> None:
    with appliance(profile=profile) as one:
        run = one.run("told_once.py", *argument, env={"REMOTEGPU_CARRIER": carrier})
    assert (run.returncode, run.stdout) == (0, "ok\n"), run.stderr


def test_a_known_module_is_not_sent_again(remote: Appliance, tmp_path: Path) -> None:
    def loads(times: int) -> dict[str, Any]:
        return statistics(remote, tmp_path / "counted", "load_again.py", str(times))

    first = loads(1)
    assert first["bytes_sent"] > 100_000
    assert first["round_trips_of"]["cuModuleLoadData"] == 3, "for room in the share, then twice: the image is not there"
    until(lambda: loads(1)["bytes_sent"] < 100_000, 20, "the appliance has kept the image for later processes")
    once, often = loads(1), loads(11)
    assert often["bytes_sent"] - once["bytes_sent"] < 2_000
    assert often["round_trips"] - once["round_trips"] == 10
    assert [counted["round_trips_of"]["cuModuleLoadData"] for counted in (once, often)] == [2, 12]


def test_settings_that_every_driver_takes_are_not_waited_for(remote: Appliance, tmp_path: Path) -> None:
    once, often = (statistics(remote, tmp_path / n, "set_again.py", n) for n in ("1", "50"))
    assert often["calls"] - once["calls"] == 3 * 49
    assert often["round_trips"] == once["round_trips"]
    # Those that it refuses.
    assert often["round_trips_of"]["cuFuncSetAttribute"] == 2


def test_a_tensor_map_is_asked_for_once(remote: Appliance, tmp_path: Path) -> None:
    once, often = (statistics(remote, tmp_path / n, "encode_again.py", n) for n in ("1", "50"))
    assert often["calls"] - once["calls"] == 2 * 49
    assert often["round_trips"] == once["round_trips"]


EPOCHS = ("1", "2")


@pytest.fixture(scope="module")
def synchronising(tmp_path_factory: pytest.TempPathFactory) -> list[int]:
    """Calls of two native runs of different length that wait for the GPU."""
    folder = tmp_path_factory.mktemp("native")
    driver = DIST / "native" / "libcuda.so.1"
    shim = tracer.build(driver, folder / "tracer")
    asked = []
    for epochs in EPOCHS:
        out = folder / f"trace-{epochs}.json"
        subprocess.run(
            [*TRAIN, "--epochs", epochs], check=True, stdout=subprocess.DEVNULL,
            env=os.environ | PRELOADED | tracer.environment(shim, driver, out),
        )  # fmt: skip
        asked.append(tracer.synchronising_calls(out))
    return asked


def test_a_training_step_makes_as_many_round_trips_as_synchronising_calls(
    remote: Appliance, synchronising: list[int], tmp_path: Path
) -> None:
    """The difference of the two runs is the steps alone, without start and module loads."""
    asked = synchronising
    travelled = [
        statistics(remote, tmp_path / f"stats-{epochs}.json", *TRAIN, "--epochs", epochs)["round_trips"]
        for epochs in EPOCHS
    ]
    steps = 14
    assert asked[1] - asked[0] >= steps, "each step copies its loss back"
    assert travelled[1] - travelled[0] == asked[1] - asked[0]
