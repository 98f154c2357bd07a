"""One process with shares of two appliances sees them as two devices."""

from __future__ import annotations

import subprocess
import sys

from support.system import PROGRAMS, REMOTEGPU, appliance


def test_devices_of_two_appliances_work_together() -> None:
    with appliance() as one, appliance(profile="hostile") as other:
        run = subprocess.run(
            [
                *(REMOTEGPU, "run", "--appliance", f"{one.endpoint},{other.endpoint}", "-n", "2", "-p", "0.25", "--"),
                *(sys.executable, str(PROGRAMS / "two_appliances.py")),
            ],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (run.returncode, run.stdout) == (0, "ok\n"), run.stderr
