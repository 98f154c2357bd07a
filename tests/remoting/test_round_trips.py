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
