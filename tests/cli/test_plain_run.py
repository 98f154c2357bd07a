"""A plain `remotegpu run` is left to `remotegpu-run`, and only the time shows a difference."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.stand_in import StandIn, make_dist
from support.system import REMOTEGPU, REMOTEGPU_RUN

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
        ("run -a one,two true", {}),
        ("run true", {"REMOTEGPU_APPLIANCE": "one,two"}),
        ("run", NAMED),
        ("run --", NAMED),
        ("run -p", NAMED),
        ("run -p 0.25", NAMED),
        ("run -p0.25 true", NAMED),
        ("run --frac 0.25 true", NAMED),
        ("run --wait=yes true", NAMED),
        ("run -n 0 true", NAMED),
        ("run -n 1025 true", NAMED),
        (f"run -n {'9' * 5000} true", NAMED),
        ("run -n two true", NAMED),
        ("run --help true", NAMED),
        ("run -h", NAMED),
        ("run --native true", NAMED),
        ("run --profile slow true", NAMED),
        ("run --report true", NAMED),
        ("run --report-file f true", NAMED),
        ("run --trace f true", NAMED),
        ("run --no-such-option true", NAMED),
    ],
)
def test_what_is_not(words: str, environment: dict[str, str]) -> None:
    assert not is_plain(words.split(), environment)


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    """Other than `appliance`'s, its folder of programs has `remotegpu-run`."""
    dist = make_dist(tmp_path_factory.mktemp("complete") / "dist")
    (dist / "bin" / "remotegpu-run").symlink_to(REMOTEGPU_RUN)
    with StandIn(dist, "--gpus", "2") as it:
        yield it


def parent_of_command(appliance: StandIn, *options: str) -> str:
    done = appliance.start([REMOTEGPU, "run", *options, "--", "sh", "-c", "readlink /proc/$PPID/exe"])
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip()).name


def test_a_plain_run_is_left_to_the_other_program(complete: StandIn) -> None:
    assert parent_of_command(complete, "-p", "0.25") == "remotegpu-run"


@pytest.mark.parametrize("options", [("--report",), ("--native",), ("-p0.25",)], ids=" ".join)
def test_another_run_is_pythons(complete: StandIn, options: tuple[str, ...]) -> None:
    assert parent_of_command(complete, *options).startswith("python")


def test_one_on_several_appliances_is_pythons(complete: StandIn, second: StandIn) -> None:
    assert parent_of_command(complete, "-a", f"{complete.endpoint},{second.endpoint}").startswith("python")


def test_without_the_other_program_python_does_it(appliance: StandIn) -> None:
    assert parent_of_command(appliance, "-p", "0.25").startswith("python")


def test_what_python_ignores_the_command_does_not(complete: StandIn) -> None:
    """An ignored signal stays one through exec: `yes` in `yes | head` would not end."""
    done = complete.start([REMOTEGPU, "run", "-p", "0.25", "--", "grep", "SigIgn", "/proc/self/status"])
    ignored = int(done.stdout.split()[1], 16)
    assert not [number.name for number in (signal.SIGPIPE, signal.SIGXFSZ) if ignored & 1 << number - 1]
