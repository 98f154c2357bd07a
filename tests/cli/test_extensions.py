"""Offload is an extension, found by its entry point: without it the rest works, and says what is missing."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from support.system import ROOT

from remotegpu import extensions
from remotegpu.cli import exits

START = "import sys; sys.path[:0] = sys.argv.pop(1).split(':'); from remotegpu.cli import main; main()"


@pytest.fixture
def without(tmp_path: Path) -> list[str]:
    """The command line of an installation that has all packages but that one, and none of its metadata."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for each in Path(sysconfig.get_path("purelib")).iterdir():
        if "remotegpu" not in each.name:
            (packages / each.name).symlink_to(each)
    return [sys.executable, "-I", "-S", "-c", START, f"{ROOT / 'remoting'}:{packages}"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["offload"],
        ["offload", "--help"],
        ["offload", "run", "-a", "x", "a.py"],
        ["appliance", "--offload", sys.executable],
    ],
)
def test_a_missing_extension_is_one_sentence_with_the_next_step(without: list[str], arguments: list[str]) -> None:
    done = subprocess.run([*without, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (exits.SOFTWARE, "")
    assert done.stderr.splitlines() == [
        "remotegpu: this installation of remotegpu lacks offload, or what that needs: `python -m pip install "
        "'remotegpu[offload]'`, or `make set-up` in a clone"
    ]


def test_the_other_commands_do_without_it(without: list[str]) -> None:
    listed = subprocess.run([*without, "--help"], capture_output=True, text=True, timeout=60, check=True)
    assert "Not in this installation: functions" in " ".join(listed.stdout.split())
    version = subprocess.run([*without, "version", "--json"], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(version.stdout)


def test_a_command_imports_it_only_where_it_is_used() -> None:
    """`remotegpu run` starts a program: what it imports, the program waits for."""
    code = (
        "import sys\nfrom remotegpu.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(any(name.startswith('remotegpu_offload') for name in sys.modules), file=sys.stderr)"
    )
    for arguments, used in ((["run", "--native", "--help"], "False"), (["offload", "--help"], "True")):
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60, check=True
        )
        assert done.stderr.splitlines()[-1] == used


def test_it_is_what_the_protocol_says() -> None:
    found = extensions.required_offload()
    assert found is extensions.offload()
    assert found.commands().info.name == extensions.OFFLOAD
    assert found.options([f"here={sys.executable}:cpu"])[0].name == "here"
    with pytest.raises(ValueError, match="fpga"):
        found.options([f"{sys.executable}:fpga"])
