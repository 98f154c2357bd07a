"""gpustat, nvitop and torch's questions see the share and nothing else of the GPU."""

from __future__ import annotations

import subprocess

import pytest
from frameworks.running import PROGRAMS, SHARE, cases_of
from support.system import Appliance, line

PROGRAM = "monitors.py"


@pytest.fixture(scope="module")
def finished(share: Appliance) -> subprocess.CompletedProcess[str]:
    """The program's run while another tenant computes on the same GPU."""
    with share.start("endless_calls.py") as other_tenant:
        assert line(other_tenant) == "ready"
        return share.run(str(PROGRAMS / PROGRAM), *cases_of(PROGRAM), share=SHARE)


@pytest.mark.parametrize("case", cases_of(PROGRAM))
def test_monitors(finished: subprocess.CompletedProcess[str], case: str) -> None:
    assert case in finished.stdout.split(), finished.stderr
