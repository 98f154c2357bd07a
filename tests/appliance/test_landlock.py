"""Without Landlock no session starts, unless the appliance is told that it may."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.stand_in import StandIn
from support.system import REMOTEGPU, free_port

from remotegpu.api.quantities import Ask
from remotegpu.cli import exits
from remotegpu.paths import find_dist

WITHOUT = (sys.executable, str(Path(__file__).parents[1] / "support" / "without_landlock.py"))


def worker(*options: str, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """A worker whose control connection is none, which it finds out after it has shut itself in."""
    dist = find_dist()
    command = [str(dist.program("remotegpu-worker")), "--driver", str(dist.library(dist.native)), *options]
    command += ["--control-fd", "0", "--data-fd", "1"]
    return subprocess.run(
        [*prefix, *command], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_worker_refuses_to_start() -> None:
    refused = worker("--require-landlock", prefix=WITHOUT)
    assert refused.returncode == 1
    assert all(word in refused.stderr for word in ("Landlock", "5.13", "--landlock warn")), refused.stderr
    assert "Landlock" not in worker(prefix=WITHOUT).stderr


@pytest.mark.parametrize("options", [(), ("--landlock", "warn", "--worker-writes", "devices")])
def test_an_appliance_does_not_start(options: tuple[str, ...]) -> None:
    """Nor where it is to enforce what only Landlock can."""
    command = [*WITHOUT, REMOTEGPU, "appliance", "--listen", f"127.0.0.1:{free_port()}", "--no-self-test", *options]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == exits.UNAVAILABLE
    assert all(word in refused.stderr for word in ("Landlock", "5.13", "--landlock warn")), refused.stderr


@pytest.mark.parametrize("option", [("--landlock", "warn")])
def test_an_appliance_that_is_told_so_starts_and_warns(dist: Path, option: tuple[str, ...]) -> None:
    with StandIn(dist, *option, env={"REMOTEGPU_LOG": "no-landlock"}) as appliance:
        check = next(check for check in appliance.client.health().checks if check.name == "worker isolation")
        assert check.status == "warn"
        assert not appliance.lease(Ask(milli_per_gpu=250)).open_session().refusal
