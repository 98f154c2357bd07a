"""torch with CUDA in an acceptor, on a share of a software GPU: the device is the share's, and programs compute there
what they compute as programs of this machine on such a share. torch's own kernels are machine code, which a software
GPU does not execute; Triton's, torch.compile's and graphs are PTX."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.stand_in import StandIn
from support.system import REMOTEGPU, until

from remotegpu.paths import find_dist

TESTS = Path(__file__).parents[3] / "tests"
SECONDS = 300
# Of each GPU; the programs expect a share of 2 GiB.
SHARE = "0.25"
MEMORY = "8192MiB"

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(2 * SECONDS)]

CONFIGURATION = """
version: 1
session: {backends: [cuda]}
offload: [{function: where.there}]
code: {page: ["./"]}
"""
WHERE = """
import torch

def there():
    device = torch.cuda.current_device()
    numbers = torch.arange(1000).to("cuda")
    return torch.cuda.device_count(), torch.cuda.get_device_properties(device).total_memory, int(numbers.cpu().sum())
"""
GREEDY = """
import torch
torch.cuda.set_per_process_memory_fraction(1.0)
kept = []
try:
    while True:
        kept.append(torch.empty(128 << 20, dtype=torch.uint8, device="cuda"))
except torch.OutOfMemoryError:
    print(sum(one.numel() for one in kept) >> 20, flush=True)
input()
"""


@pytest.fixture(scope="module")
def appliance() -> Iterator[StandIn]:
    with StandIn(find_dist().root, "--gpus", "2", "--memory", MEMORY, "--offload", f"here={sys.executable}:cuda") as it:
        (check,) = (one for one in it.client.health().checks if one.name == "environment here")
        assert check.status == "ok", check.message
        yield it


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for source in (*TESTS.glob("frameworks_torch/programs/*.py"), TESTS / "frameworks" / "programs" / "cases.py"):
        shutil.copy(source, tmp_path)
    (tmp_path / "remotegpu.yaml").write_text(CONFIGURATION)
    (tmp_path / "where.py").write_text(WHERE)
    return tmp_path


def offload(appliance: StandIn, *words: str) -> list[str]:
    where = ["-a", appliance.endpoint, "-p", SHARE, "--python", sys.executable]
    return [REMOTEGPU, "offload", "run", *where, *words]


def output(folder: Path, command: list[str]) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_function_has_the_shares_device(appliance: StandIn, folder: Path) -> None:
    (folder / "main.py").write_text("import where\nprint(*where.there())\n")
    assert output(folder, offload(appliance, "main.py")).split() == ["1", str(2 << 30), "499500"]


def test_torch_takes_no_more_than_the_share(appliance: StandIn, folder: Path) -> None:
    (folder / "greedy.py").write_text(GREEDY)
    command = offload(appliance, "--split", "app", "greedy.py")
    program = subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with program:
        assert program.stdout is not None
        taken = int(program.stdout.readline())
        assert 1024 <= taken <= 2048
        (lease,) = appliance.client.inventory().leases
        assert lease.sessions == 2
        assert taken << 20 <= sum(gpu.used_bytes for gpu in appliance.gpus) <= 2 << 30
        program.communicate("end\n", timeout=SECONDS)
    until(lambda: appliance.leased == 0, SECONDS, "all is back")


@pytest.mark.parametrize(
    ("program", "without"),
    [
        # The first was not tried here: it starts another program that uses CUDA. The second wants a variable.
        ("torch_cases.py", ("management", "expandable_segments")),
        ("triton_cases.py", ("dot_in_tf32", "layer_norm", "sort_and_transpose", "autotune", "scan")),
        ("graph_cases.py", ("shared_pool", "two_streams")),
    ],
)
def test_a_program_computes_what_it_computes_on_a_share(
    appliance: StandIn, folder: Path, program: str, without: tuple[str, ...]
) -> None:
    every = re.findall(r"^def (\w+)\(\):$", (folder / program).read_text(), re.MULTILINE)
    cases = [case for case in every if case not in without]
    assert len(cases) >= 3
    here = [REMOTEGPU, "run", "--appliance", appliance.endpoint, "-p", SHARE, "--", sys.executable, program, *cases]
    expected = output(folder, here)
    assert [line.split()[0] for line in expected.splitlines()] == cases
    assert output(folder, offload(appliance, "--split", "app", program, *cases)) == expected
