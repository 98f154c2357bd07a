"""A `remotegpu run` that needs no Python is left to `remotegpu-run`."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest
from support.stand_in import StandIn, make_dist
from support.system import REMOTEGPU

from remotegpu.api.quantities import Ask
from remotegpu.cli.run.command import parse_ask
from remotegpu.cli.run.plain import is_plain

NAMED = {"REMOTEGPU_APPLIANCE": "gpu:7070"}


@pytest.mark.parametrize(
    ("words", "environment"),
    [
        ("run -a gpu true", {}),
        ("run -- true", NAMED),
        ("run -p 0.25 --wait - --native", NAMED),
        ("run --appliance=gpu --fraction=0.25 --no-wait -- sh -c --native", {}),
        ("run -a , -a gpu, true", {}),
        ("run -n 1024 -m 4GiB --compute 0.5 --compute-limit 1 --managed-memory 1GiB true", NAMED),
        ("run --token t --token-file f --ca c --server-name s true", NAMED),
        ("run -p0.25 -n2 true", NAMED),
        ("run -a one,two true", {}),
        ("run true", {"REMOTEGPU_APPLIANCE": "one,two"}),
        ("run --native --profile slow true", {}),
        ("run --profile slow true", NAMED),
        # What is wrong with these, both programs say with the same words.
        ("run -p -- -- true", NAMED),
        ("run -p 0.25 -m lots true", NAMED),
    ],
)
def test_what_is_plain(words: str, environment: dict[str, str]) -> None:
    assert is_plain(words.split(), environment)


@pytest.mark.parametrize(
    ("words", "environment"),
    [
        ("", NAMED),
        ("ls -a gpu", NAMED),
        ("trace -- run", NAMED),
        ("run true", {}),
        ("run -a , true", NAMED),
        ("run", NAMED),
        ("run --", NAMED),
        ("run -p", NAMED),
        ("run -p 0.25", NAMED),
        ("run --frac 0.25 true", NAMED),
        ("run --wait=yes true", NAMED),
        ("run -n 0 true", NAMED),
        ("run -n 1025 true", NAMED),
        (f"run -n {'9' * 5000} true", NAMED),
        ("run -n two true", NAMED),
        ("run --help true", NAMED),
        ("run -h", NAMED),
        ("run --native true", {"REMOTEGPU_NULL_RULES": "f"}),
        ("run -px true --native -n0 true", {}),
        ("run --report true", NAMED),
        ("run --report-file f true", NAMED),
        ("run --trace f true", NAMED),
        ("run --no-such-option true", NAMED),
    ],
)
def test_what_is_not(words: str, environment: dict[str, str]) -> None:
    assert not is_plain(words.split(), environment)


def parent_of_command(appliance: StandIn, *options: str) -> str:
    done = appliance.start([REMOTEGPU, "run", *options, "--", "sh", "-c", "readlink /proc/$PPID/exe"])
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip()).name


@pytest.mark.parametrize("options", [("-p", "0.25"), ("-p0.25",), ("--native",)], ids=" ".join)
def test_a_plain_run_is_the_other_program(appliance: StandIn, options: tuple[str, ...]) -> None:
    assert parent_of_command(appliance, *options) == "remotegpu-run"


def test_one_on_several_appliances_is_plain(appliance: StandIn, second: StandIn) -> None:
    assert parent_of_command(appliance, "-a", f"{appliance.endpoint},{second.endpoint}") == "remotegpu-run"


def test_a_run_with_a_report_is_pythons(appliance: StandIn) -> None:
    assert parent_of_command(appliance, "--report").startswith("python")


def test_without_the_other_program_one_line_says_so(appliance: StandIn, tmp_path: Path) -> None:
    dist = make_dist(tmp_path / "dist")
    program = dist / "bin" / "remotegpu-run"
    program.unlink()
    done = subprocess.run(
        [REMOTEGPU, "run", "-a", appliance.endpoint, "true"],
        env={**appliance.environment, "REMOTEGPU_DIST": str(dist)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, len(done.stderr.splitlines())) == (70, 1)
    assert str(program) in done.stderr


def test_what_python_ignores_the_command_does_not(appliance: StandIn) -> None:
    """An ignored signal stays one through exec: `yes` in `yes | head` would not end."""
    done = appliance.start([REMOTEGPU, "run", "-p", "0.25", "--", "grep", "SigIgn", "/proc/self/status"])
    ignored = int(done.stdout.split()[1], 16)
    assert not [number.name for number in (signal.SIGPIPE, signal.SIGXFSZ) if ignored & 1 << number - 1]


def test_what_an_ask_is_made_of() -> None:
    assert parse_ask(1, None, None) == Ask(1, 1000, 0)
    assert parse_ask(2, "0.25", None) == Ask(2, 250, 0)
    assert parse_ask(1, "2", None) == Ask(2, 1000, 0)
    assert parse_ask(2, "1", None) == Ask(2, 1000, 0)
    assert parse_ask(3, None, "1GiB") == Ask(3, 0, 1 << 30)
