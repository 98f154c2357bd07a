"""The release before this one and this one work together, whichever is the client (`make release-fixture`)."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from support import system
from support.system import MIB, ROOT, SELF_CHECKING, Appliance, appliance, line, training_results, until

from remotegpu.rpc import OLDEST_WIRE, WIRE_VERSION

RELEASE = ROOT / "target/fixture/release"
DIGITS = ROOT / "examples/01-digits/train.py"
BUSY = 75
OUT_OF_MEMORY = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    commit = yaml.safe_load((ROOT / "remoting/registry/wire.yaml").read_text())["previous"]
    if subprocess.run(["git", "cat-file", "-e", f"{commit}^{{commit}}"], cwd=ROOT, capture_output=True).returncode:
        pytest.skip(f"commit {commit}, the release before this one, is not in this clone: `git fetch --unshallow`")
    built = RELEASE / "commit"
    if not built.exists() or built.read_text().strip() != commit:
        pytest.fail("the release before this one is missing: `make release-fixture`")
    return tmp_path_factory.mktemp("older")


@contextlib.contextmanager
def older(folder: Path) -> Iterator[None]:
    """In the block command line, client and appliance are those of the release before this one."""
    with system.started_by(f"env REMOTEGPU_DIST={RELEASE} PYTHONPATH={RELEASE}/python", folder):
        yield


@contextlib.contextmanager
def older_appliance(folder: Path, *options: str) -> Iterator[Appliance]:
    with older(folder):
        it = Appliance(*options)
    try:
        # It may have other commands for that.
        it.wait_until_ready()
        yield it
    finally:
        it.stop()


@contextlib.contextmanager
def one_is_older(folder: Path, *options: str, client: bool) -> Iterator[Appliance]:
    """An appliance whose programs are run by a client of another version: the older one is that, or the appliance."""
    if client:
        with appliance(*options) as it, older(folder):
            yield it
    else:
        with older_appliance(folder, *options) as it:
            yield it


def test_the_older_one_is_older(folder: Path) -> None:
    with older(folder):
        told = subprocess.run([system.REMOTEGPU, "version", "--json"], capture_output=True, text=True, check=True)
    assert (json.loads(told.stdout)["wire"], WIRE_VERSION) == (OLDEST_WIRE, OLDEST_WIRE + 1)


@pytest.mark.parametrize("who", ["older-client", "older-appliance", "nobody"])
def test_what_came_with_this_release_is_used_where_both_have_it(folder: Path, who: str) -> None:
    """The line that a budget is used up: an older client is not sent it, which would end its session."""
    budget = ("--session-budget", "streams=3")
    with appliance(*budget) if who == "nobody" else one_is_older(folder, *budget, client=who == "older-client") as it:
        run = it.run("too_many_streams.py")
    codes = run.stdout.split()
    assert (run.returncode, codes) == (0, ["0", "0", *[str(OUT_OF_MEMORY)] * 3]), run.stderr
    assert run.stderr.count("budget of 3 streams") == (who == "nobody"), run.stderr


def test_a_session_moves_where_its_version_is_spoken(folder: Path) -> None:
    def lease(at: Appliance) -> str:
        (one,) = at.inventory()["appliances"][0]["leases"]
        return str(one["lease_id"])[:8]

    def computes(program: subprocess.Popen[str]) -> None:
        assert program.stdin is not None
        program.stdin.write("again\n")
        program.stdin.flush()
        assert line(program) == "ok"

    with appliance() as new, older_appliance(folder) as old:
        with older(folder):
            command = new.command("keep_and_check.py", "8")
        with old_program(command) as program:
            for here, there in ((new, old), (old, new)):
                done = here.cli("migrate", lease(here), "--to", there.endpoint, timeout=100)
                assert done.returncode == 0, done.stderr
                computes(program)
        until(lambda: new.leased_bytes() == old.leased_bytes() == 0, 20, "nothing is left")
        with new.start("keep_and_check.py", "8", stdin=subprocess.PIPE) as program:
            assert line(program) == "ready"
            refused = new.cli("migrate", lease(new), "--to", old.endpoint, timeout=100)
            assert refused.returncode == BUSY, refused.stderr
            for named in (f"wire version {WIRE_VERSION}", f"{OLDEST_WIRE}", "upgrade the appliance", "it stays here"):
                assert named in refused.stderr
            computes(program)


@contextlib.contextmanager
def old_program(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert line(process) == "ready"
        yield process
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module", params=[True, False], ids=["older-client", "older-appliance"])
def pair(request: pytest.FixtureRequest, folder: Path) -> Iterator[Appliance]:
    """For the tests below, which are the last: the command line is another one as long as this is there."""
    with one_is_older(folder, client=request.param) as it:
        yield it


@pytest.mark.parametrize("program", [*SELF_CHECKING, "random_graphs.py 1 20", "mirrored_words.py 20 1024 16 1 each 2"])
def test_programs_that_check_themselves(pair: Appliance, program: str) -> None:
    run = pair.run(*program.split())
    assert run.returncode == 0, run.stderr
    assert "do not fit" not in run.stderr


@pytest.mark.parametrize("carrier", ["direct", "grpc"])
def test_a_training_ends_with_the_same_bits(pair: Appliance, tmp_path: Path, carrier: str) -> None:
    files = [tmp_path / f"{number}.json" for number in range(2)]
    run = pair.run(sys.executable, str(DIGITS), "--json", str(files[0]), env={"REMOTEGPU_CARRIER": carrier})
    assert run.returncode == 0, run.stderr
    native = [
        system.REMOTEGPU,
        "run",
        "--native",
        "-p",
        "0.25",
        "--",
        sys.executable,
        str(DIGITS),
        "--json",
        str(files[1]),
    ]
    done = subprocess.run(native, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found, expected = (training_results(file) for file in files)
    assert (found.pop("memory_bytes"), expected.pop("memory_bytes")) == (2048 * MIB // 4, 8192 * MIB // 4)
    assert found == expected
    until(lambda: pair.leased_bytes() == 0, 5, "a program that ends gives its share back at once")
