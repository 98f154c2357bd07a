"""`remotegpu offload explain` of a torch program: operations, round trips, and the very lines that wait."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from offload_explain import explain

pytestmark = pytest.mark.frameworks

PROGRAM = """
import torch

def step(weights, samples):
    loss = (samples @ weights).square().mean()
    loss.backward()
    with torch.no_grad():
        weights -= 0.1 * weights.grad
        weights.grad = None
    return loss.item()      # line 10

def main():
    torch.manual_seed(0)
    weights = torch.randn(8, 1, device="cuda", requires_grad=True)
    samples = torch.randn(32, 8).to("cuda")
    for _ in range(7):
        step(weights, samples)
    print(samples.cpu().shape)      # line 18

main()
"""


def report_of(folder: Path, program: str) -> dict[str, Any]:
    done, report = explain(folder, program)
    assert done.returncode == 0, done.stderr
    return report


def test_lines_that_wait_are_named_and_counted(tmp_path: Path) -> None:
    found = report_of(tmp_path, PROGRAM)["torch"]
    waits = {(Path(wait["file"]).name, wait["line"]): wait["times"] for wait in found["waits"] if wait["line"]}
    assert waits[("program.py", 10)] == 7
    assert waits[("program.py", 18)] == 1
    assert found["round_trips"] == sum(wait["times"] for wait in found["waits"])
    assert found["operations"] >= 7 * 5
    assert found["bytes_in"] >= 32 * 8 * 4, "the samples came back"


def test_a_program_without_torch_has_no_such_part(tmp_path: Path) -> None:
    assert report_of(tmp_path, "print(1)")["torch"] is None
    assert report_of(tmp_path, "import torch\nprint(torch.ones(2).sum())")["torch"] is None, "nothing is on the device"


def test_arguments_of_functions_are_sized_without_fetching_them(tmp_path: Path) -> None:
    report = report_of(tmp_path, PROGRAM)
    functions = {line["name"]: line for line in report["functions"]}
    step = functions["__main__.step"]
    assert step["served_by_torch"] and not step["pays"] and not report["suggestions"], "torch mode is all that it needs"
    size = step["argument_bytes"]
    assert (8 + 32 * 8) * 4 <= size < (8 + 32 * 8) * 4 + 1000
