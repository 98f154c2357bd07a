"""A stream says itself in which context its work is; only a default stream takes the current one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import yaml
from support.system import ROOT, appliance

Run = Callable[..., subprocess.CompletedProcess[str]]
PROGRAM = "stream_context.py"
INVALID_CONTEXT = 201
# These make a stream, in the current context.
MAKING = {"cuStreamCreate", "cuStreamCreateWithPriority"}


def taking_streams() -> set[str]:
    table = yaml.safe_load((ROOT / "remoting/registry/parameters.yaml").read_text())["functions"]
    return {name for name, given in table.items() if any("stream" in str(of).split() for of in given)} - MAKING


def check(result: subprocess.CompletedProcess[str]) -> None:
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    missing = taking_streams() - set(answer["with"])
    assert not missing, f"{PROGRAM} calls no {missing}"
    assert {name: code for name, code in answer["with"].items() if code} == {}
    assert answer["without"] == answer["with"]
    assert answer["default"] == INVALID_CONTEXT


def test_explicit_streams_need_no_current_context(run: Run) -> None:
    check(run(PROGRAM))


def test_explicit_streams_need_no_current_context_on_a_share() -> None:
    with appliance() as it:
        check(it.run(sys.executable, str(Path(__file__).parent / "programs" / PROGRAM)))
