"""The statistics that processes write to `REMOTEGPU_STATS`, however they end."""

from __future__ import annotations

import json
from pathlib import Path

from support.system import Appliance


def test_each_process_leaves_its_statistics_and_its_memory_however_it_ends(remote: Appliance, tmp_path: Path) -> None:
    """The session of a child ends with it, so that the next one has room, while the program continues."""
    out = tmp_path / "statistics"
    out.mkdir()
    run = remote.run("ending_children.py", env={"REMOTEGPU_STATS": str(out)})
    assert run.returncode == 0, run.stderr
    children = list(map(int, run.stdout.split()))
    assert len(children) == 3
    reports = {report["pid"]: report for file in out.iterdir() for report in [json.loads(file.read_text())]}
    for child in children:
        assert reports[child]["functions"]["cuMemcpyHtoD_v2"] == 5
        assert "ending_children.py" in reports[child]["process"]
        assert (out / f"{child}.json").exists()
