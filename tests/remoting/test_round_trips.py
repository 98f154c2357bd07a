"""A training step costs one round trip per call that waits for the GPU, by an independent count, and nothing more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from support import tracer
from support.system import DIST, ROOT, Appliance

TRAIN = [sys.executable, str(ROOT / "examples" / "01-digits" / "train.py")]


def test_a_training_step_makes_as_many_round_trips_as_synchronising_calls(remote: Appliance, tmp_path: Path) -> None:
    """Two runs of different length; their difference is the steps alone, without start and module loads."""
    driver = DIST / "native" / "libcuda.so.1"
    shim = tracer.build(driver, tmp_path / "tracer")
    asked, travelled = [], []
    for epochs in ("1", "3"):
        out = tmp_path / f"trace-{epochs}.json"
        subprocess.run(
            [*TRAIN, "--epochs", epochs], check=True, stdout=subprocess.DEVNULL,
            env=os.environ | tracer.environment(shim, driver, out),
        )  # fmt: skip
        asked.append(tracer.synchronising_calls(out))
        stats = tmp_path / f"stats-{epochs}.json"
        run = remote.run(*TRAIN, "--epochs", epochs, env={"REMOTEGPU_STATS": str(stats)}, timeout=300)
        assert run.returncode == 0, run.stderr
        travelled.append(json.loads(stats.read_text())["round_trips"])
    steps = 2 * 14
    assert asked[1] - asked[0] >= steps, "each step copies its loss back"
    assert travelled[1] - travelled[0] == asked[1] - asked[0]
