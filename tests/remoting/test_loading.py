"""Device code: what is kept of it, and what loading it waits for."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.system import REMOTEGPU, ROOT, appliance

PROGRAM = str(ROOT / "tests" / "programs" / "load_under_kernel.py")


@pytest.mark.parametrize("bed", ["native", "remote"])
def test_loading_a_kernel_may_wait_for_a_running_one_and_holds_up_nobody_else(bed: str) -> None:
    """On the slow profile, loading waits for all that runs, as CUDA says that it may."""
    if bed == "native":
        command = [REMOTEGPU, "run", "--native", "--profile", "slow", "--", sys.executable, PROGRAM]
        run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    else:
        with appliance(profile="slow") as slow:
            run = slow.run("load_under_kernel.py", timeout=60)
    assert (run.returncode, run.stdout) == (0, "waits\nok\n"), run.stderr


def test_images_share_a_budget_and_one_beyond_it_is_refused_with_a_reason() -> None:
    with appliance("--image-memory", "1MiB") as small:
        run = small.run("load_large.py", "700", "800", "2000", "900")
    assert (run.returncode, run.stdout) == (0, "0 0 2 0 0 0 2 0\n"), run.stderr
    (line,) = (line for line in run.stderr.splitlines() if "--image-memory" in line)
    assert "2 MiB" in line and "1 MiB" in line, "once: what was to be loaded, and the limit"
