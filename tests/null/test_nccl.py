"""NCCL from its wheel on the software GPU, natively and on a share: one rank works, several end at once and say why.

The software GPU keeps values: what one rank copies is compared.
"""

from __future__ import annotations

import json
import subprocess

import pytest
from null.counting import PROGRAMS, PYTHON
from support.system import REMOTEGPU

RUN_SECONDS = 200
# At most two runs.
pytestmark = pytest.mark.timeout(2 * RUN_SECONDS + 20)
SENTENCE = "NCCL among ranks that do not reach each other's GPU memory ("


def run(program: str, *options: str, arguments: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    assert PYTHON.exists(), "run `make test-null-frameworks`, which installs the wheels"
    command = [REMOTEGPU, "run", *options, "--", str(PYTHON), str(PROGRAMS / program), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS)


@pytest.mark.null_frameworks
@pytest.mark.parametrize(
    "where", [["--native"], [], ["--native", "--profile", "null-h100"], ["--profile", "null-h100"]]
)
def test_collectives_of_one_rank_are_copies(where: list[str]) -> None:
    done = run("nccl_one_rank.py", *where)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["ok"]), done.stderr
    assert "NCCL WARN Cuda failure" not in done.stdout + done.stderr


@pytest.mark.null_frameworks
@pytest.mark.parametrize("where", [["--native"], []])
def test_several_ranks_end_at_once_with_a_sentence(where: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    # Whether ranks reach each other's memory without being told depends on the CPU (they do on AMD's).
    monkeypatch.setenv("NCCL_P2P_LEVEL", "LOC")
    done = run("nccl_two_ranks.py", "-n", "2", *where)
    assert done.returncode == 0, done.stderr
    for answer in json.loads(done.stdout.splitlines()[-1]):
        assert answer["code"] != 0, answer
        assert answer["seconds"] < 5, answer
    assert done.stderr.count(SENTENCE) == 1, done.stderr


@pytest.mark.null_frameworks
@pytest.mark.parametrize("where", [["--native"], []])
def test_ranks_that_reach_each_others_memory_work(where: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("NCCL_P2P_LEVEL", "SYS")
    done = run("torch_nccl.py", "-n", "2", *where)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["same"]), done.stderr


@pytest.mark.null_frameworks
@pytest.mark.parametrize("where", [(), ("apart",)])
def test_several_processes_of_torch_end_at_once_with_a_sentence(
    where: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "lo")
    # `remotegpu run` sets SYS where nothing is set: ranks of one machine would then reach each other.
    monkeypatch.setenv("NCCL_P2P_LEVEL", "LOC")
    done = run("torch_two_ranks.py", "-n", "2", "--profile", "null-h100", arguments=where)
    assert done.returncode == 0, done.stderr
    for answer in json.loads(done.stdout.splitlines()[-1]):
        assert "NCCL" in answer["answer"], answer
        assert answer["seconds"] < 5, answer
    # Each process says it once.
    assert done.stderr.count(SENTENCE) == 2, done.stderr


@pytest.mark.null_frameworks
def test_ranks_that_sockets_connect_end_when_they_connect_on_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Natively they work: the software GPU's kernels and this machine's CPU have the same memory. How long NCCL takes
    until it connects is not ours: it loads hundreds of kernels before."""
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("NCCL_P2P_LEVEL", "SYS")
    native = run("torch_two_ranks.py", "-n", "2", "--native", arguments=("apart",))
    assert native.returncode == 0, native.stderr
    answers = [answer["answer"] for answer in json.loads(native.stdout.splitlines()[-1])]
    assert answers == ["ok", "ok"], native.stderr
    share = run("torch_two_ranks.py", "-n", "2", arguments=("apart",))
    assert share.returncode == 0, share.stderr
    for answer in json.loads(share.stdout.splitlines()[-1]):
        assert "NCCL" in answer["answer"], answer
    assert share.stderr.count(SENTENCE) == 2, share.stderr
