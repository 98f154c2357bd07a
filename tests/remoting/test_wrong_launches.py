"""A wrong launch answers the same code at the same call natively and on a share, and leaves nothing behind."""

from __future__ import annotations

import json
import re
import subprocess

from support.system import Appliance, native

RIGHT = {
    "a buffer without the last parameter",
    "a kernel",
    "a kernel, in a stream of another context",
    "a larger buffer",
    "a priority",
    "a way that is not needed",
    "all parameters in a buffer",
    "an event",
    "as many threads as bounds allow",
    "as much as asked for",
    "asking for 64 KiB",
    "clusters of one block",
    "cooperating",
    "cuLaunchCooperativeKernel",
    "function and stream of another context",
    "not cooperating",
    "right",
    "right at the end",
    "right in a stream",
    "right, with parameters",
    "the block required",
}


def answers(run: subprocess.CompletedProcess[str]) -> dict[str, list[int]]:
    assert run.returncode == 0, run.stderr
    found: dict[str, list[int]] = json.loads(run.stdout)
    # One for each launch of `add` that is right and names a number; the short buffer adds 0.
    assert found.pop("added") == [4, 0]
    return found


def test_the_code_comes_at_the_call_as_it_does_natively(remote: Appliance) -> None:
    expected = answers(native("wrong_launches.py"))
    assert {name for name, (code, _) in expected.items() if code == 0} == RIGHT
    assert {name: late for name, (_, late) in expected.items() if late} == {}
    run = remote.run("wrong_launches.py")
    assert answers(run) == expected
    assert "software GPU does not execute: " in run.stderr, "the driver's reason"
    assert re.search(r"kernel \w+ \(CUDA error 218\)", run.stderr), "what the client says"
