"""Mistakes in calling `remotegpu offload`: one line, the right exit code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from remotegpu.cli import exits

REMOTEGPU = str(Path(sys.executable).parent / "remotegpu")


def offload(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [REMOTEGPU, "offload", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("group", [(), ("jupyter",)])
def test_a_group_without_a_command_prints_its_commands_and_nothing_else(tmp_path: Path, group: tuple[str, ...]) -> None:
    done = offload(tmp_path, *group)
    assert (done.returncode, done.stderr) == (exits.USAGE, "")
    assert "Usage: " in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["check", "--python", "no-such-python"], exits.NOT_FOUND, "there is no such interpreter; give its path"),
        (["check", "--python", "/etc/passwd"], exits.NOT_FOUND, "there is no such interpreter"),
        (["check", "--python", "/bin/false"], exits.SOFTWARE, "it must be Python 3.11 or newer"),
        (["check", "--nix"], exits.USAGE, "No such option"),
        (["explain", "absent.py"], exits.NOT_FOUND, "there is no such script"),
        (["explain"], exits.USAGE, "Missing argument"),
        (["explain", "--config", "absent.yaml", "good.py"], exits.USAGE, "cannot be read (No such file or directory)"),
        (["explain", "--python", "/bin/false", "good.py"], exits.SOFTWARE, "nothing was counted"),
        (["nix"], exits.USAGE, "No such command"),
        (["run"], exits.USAGE, "Missing argument"),
        (["run", "--python", "no-such-python", "good.py"], exits.NOT_FOUND, "there is no such interpreter"),
        (["run", "--config", "absent.yaml", "good.py"], exits.USAGE, "cannot be read (No such file or directory)"),
        (["run", "--split", "half", "good.py"], exits.USAGE, "'half'"),
        (["run", "-p", "2.5", "good.py"], exits.USAGE, "neither part of one GPU nor a number of whole ones"),
        (["run", "-a", "127.0.0.1:1", "good.py"], exits.UNAVAILABLE, "127.0.0.1:1"),
        (["backends"], exits.USAGE, "no appliance is named"),
        (["stats", "12345678"], exits.USAGE, "no session 12345678 runs as this user"),
        (["switch", "12345678", "-b", "cpu"], exits.USAGE, "no session 12345678 runs as this user"),
        (["bench", "--python", sys.executable], exits.USAGE, "has no torch, which is measured"),
    ],
)
def test_mistakes_are_one_line_and_say_what_to_do(tmp_path: Path, arguments: list[str], code: int, said: str) -> None:
    (tmp_path / "good.py").write_text("")
    done = offload(tmp_path, *arguments)
    assert done.returncode == code
    line = done.stderr.strip().splitlines()[-1]
    assert line.startswith("remotegpu: ") and said in line


def test_a_configuration_that_cannot_be_is_told_by_its_line(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text("")
    (tmp_path / "remotegpu.yaml").write_text("version: 1\ntrust: everybody\n")
    done = offload(tmp_path, "explain", "good.py")
    assert done.returncode == exits.USAGE
    assert "remotegpu.yaml:2: trust: 'everybody' is not possible; possible are full, restricted" in done.stderr
