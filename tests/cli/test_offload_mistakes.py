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
        (["check", "--python", "no-such-python"], exits.NOT_FOUND, "--python no-such-python"),
        (["check", "--python", "/etc/passwd"], exits.NOT_FOUND, "--python /etc/passwd"),
        (["check", "--python", "/bin/false"], exits.SOFTWARE, "/bin/false"),
        (["check", "--nix"], exits.USAGE, "--nix"),
        (["explain", "absent.py"], exits.NOT_FOUND, "absent.py"),
        (["explain"], exits.USAGE, "Missing argument"),
        (["explain", "--config", "absent.yaml", "good.py"], exits.USAGE, "absent.yaml"),
        (["explain", "--python", "/bin/false", "good.py"], exits.SOFTWARE, "remotegpu: "),
        (["nix"], exits.USAGE, "'nix'"),
        (["run"], exits.USAGE, "Missing argument"),
        (["run", "--python", "no-such-python", "good.py"], exits.NOT_FOUND, "--python no-such-python"),
        (["run", "--config", "absent.yaml", "good.py"], exits.USAGE, "absent.yaml"),
        (["run", "--split", "half", "good.py"], exits.USAGE, "'half'"),
        (["run", "-p", "2.5", "good.py"], exits.USAGE, "2.5"),
        (["run", "-a", "127.0.0.1:1", "good.py"], exits.UNAVAILABLE, "127.0.0.1:1"),
        (["backends"], exits.USAGE, "no appliance is named"),
        (["stats", "12345678"], exits.USAGE, "session 12345678"),
        (["switch", "12345678", "-b", "cpu"], exits.USAGE, "session 12345678"),
        (["bench", "--python", sys.executable], exits.USAGE, "torch"),
    ],
)
def test_mistakes_are_one_line_and_say_what_to_do(tmp_path: Path, arguments: list[str], code: int, said: str) -> None:
    (tmp_path / "good.py").write_text("")
    done = offload(tmp_path, *arguments)
    assert done.returncode == code
    line = done.stderr.strip().splitlines()[-1]
    assert line.startswith("remotegpu: ") and said in line


def test_an_invalid_configuration_is_reported_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text("")
    (tmp_path / "remotegpu.yaml").write_text("version: 1\ntrust: everybody\n")
    done = offload(tmp_path, "explain", "good.py")
    assert done.returncode == exits.USAGE
    names = ("remotegpu.yaml:2: trust: ", "'everybody'", "full", "restricted")
    assert all(name in done.stderr for name in names), done.stderr
