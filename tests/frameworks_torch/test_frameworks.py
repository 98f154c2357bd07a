"""torch, Triton and torch.compile from their own wheels, on the software GPU alone and on a share of it: right against
torch on the CPU, and the same bytes both ways. Gigabytes of wheels: run by `make test-frameworks`."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.system import REMOTEGPU, Appliance, appliance, free_port

PROGRAMS = Path(__file__).parent / "programs"
# The folder of `cases.py`, which runs the cases of all frameworks' programs.
CASES_FOLDER = Path(__file__).parents[1] / "frameworks" / "programs"
PYTHON = Path(REMOTEGPU).with_name("python")
SHARE = "0.25"  # 2 GiB, of the software GPU's 8 GiB
SECONDS = 600

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(2 * SECONDS)]


@dataclass(frozen=True)
class Group:
    """Cases of one program that run in one process: starting torch takes seconds."""

    program: str
    without: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()

    def cases(self) -> tuple[str, ...]:
        every = re.findall(r"^def (\w+)\(\):$", (PROGRAMS / self.program).read_text(), re.MULTILINE)
        return self.only or tuple(case for case in every if case not in self.without)


GROUPS = {
    "triton": Group("triton_cases.py"),
    "compile": Group("compile_cases.py"),
    "torch": Group("torch_cases.py", without=("expandable_segments",)),
    "expandable": Group(
        "torch_cases.py",
        only=("expandable_segments", "copies", "out_of_memory", "data_loader"),
        environment=(("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),),
    ),
    "graphs": Group("graph_cases.py"),
    "refused": Group("refused_cases.py"),
}
CASES = [(group, case) for group, described in GROUPS.items() for case in described.cases()]

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def share() -> Iterator[Appliance]:
    with appliance(memory_mib=8192) as it:
        yield it


@pytest.fixture(scope="module")
def run(share: Appliance, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """run(where, program, *arguments, **environment): the finished process, with empty caches of its own."""

    def start(where: str, program: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        place = ["--native"] if where == "native" else ["--appliance", share.endpoint]
        command = [REMOTEGPU, "run", *place, "-p", SHARE, "--", str(PYTHON), str(PROGRAMS / program), *arguments]
        caches = tmp_path_factory.mktemp("caches")
        variables = {
            "PYTHONPATH": str(CASES_FOLDER),
            # Otherwise the faster of two kernels is chosen by measuring, and they add in another order.
            "TORCHINDUCTOR_DETERMINISTIC": "1",
            "TRITON_CACHE_DIR": str(caches / "triton"),
            "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        }
        return subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS, env=os.environ | variables | environment
        )

    return start


@pytest.fixture(scope="module")
def finished(run: Run) -> Callable[[str, str], subprocess.CompletedProcess[str]]:
    """finished(where, group): each group runs once."""
    kept: dict[tuple[str, str], subprocess.CompletedProcess[str]] = {}

    def get(where: str, name: str) -> subprocess.CompletedProcess[str]:
        if (where, name) not in kept:
            group = GROUPS[name]
            kept[where, name] = run(where, group.program, *group.cases(), **dict(group.environment))
        return kept[where, name]

    return get


Finished = Callable[[str, str], subprocess.CompletedProcess[str]]


def digest(done: subprocess.CompletedProcess[str], case: str) -> str:
    """Returns the digest of the case's result; fails with its report if the case did not pass."""
    passed = dict(line.split(" ") for line in done.stdout.splitlines())
    report = re.search(rf"^--- {case}\n.*?(?=^--- |\Z)", done.stderr, re.MULTILINE | re.DOTALL)
    assert case in passed, report[0] if report else done.stderr
    return passed[case]


@pytest.mark.parametrize(("group", "case"), CASES)
def test_framework(finished: Finished, group: str, case: str) -> None:
    native = digest(finished("native", group), case)
    assert digest(finished("share", group), case) == native


@pytest.mark.parametrize("where", ["native", "share"])
def test_kernels_without_ptx_are_explained_in_one_line(finished: Finished, where: str) -> None:
    lines = [line for line in finished(where, "refused").stderr.splitlines() if "CUDA error 209" in line]
    assert len(lines) == 1
    assert "holds no PTX" in lines[0]


@pytest.mark.parametrize("where", ["native", "share"])
@pytest.mark.parametrize("segments", ["False", "True"])
def test_tensors_go_to_another_process(run: Run, where: str, segments: str) -> None:
    """By handles of cuIpc*, and by descriptors where segments are expandable."""
    done = run(where, "processes.py", PYTORCH_CUDA_ALLOC_CONF=f"expandable_segments:{segments}")
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


@pytest.mark.parametrize("where", ["native", "share"])
def test_two_ranks_of_nccl_on_one_gpu_end_with_its_error(run: Run, where: str) -> None:
    """NCCL itself refuses them. Ranks on several GPUs: tests/null/test_nccl.py."""
    done = run(where, "nccl_ranks.py", str(free_port()))
    outcomes = done.stdout.splitlines()
    assert len(outcomes) == 2, done.stdout + done.stderr
    assert all("Multiple Ranks are using the same GPU" in outcome for outcome in outcomes), done.stdout
