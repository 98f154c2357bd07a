"""Moving a lease to another appliance: its programs continue there and notice nothing, or continue where they were."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from support.certificates import certificate
from support.faultproxy import FaultProxy, Line, Way
from support.leases import end, keeping, lease, leases, moved_often, tell
from support.system import MIB, PROGRAMS, REMOTEGPU, ROOT, Appliance, appliance, line, training_results, until

BUSY, DENIED = 75, 77
DIGITS = ROOT / "examples/01-digits/train.py"


@pytest.fixture(scope="module")
def two() -> Iterator[tuple[Appliance, Appliance]]:
    with appliance(memory_mib=1024) as one, appliance(memory_mib=1024) as other:
        yield one, other


def migrate(one: Appliance, other: Appliance, *options: str) -> subprocess.CompletedProcess[str]:
    return one.cli("migrate", lease(one), "--to", other.endpoint, *options, timeout=100)


def moved(one: Appliance, other: Appliance, *options: str) -> str:
    done = migrate(one, other, *options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def stays(one: Appliance, other: Appliance, reason: str) -> None:
    refused = migrate(one, other)
    assert refused.returncode == BUSY, refused.stderr
    assert reason in refused.stderr
    # In one line, which says what becomes of the programs.
    assert refused.stderr.count("\n") == 1
    assert "it stays here" in refused.stderr


def computes(program: subprocess.Popen[str]) -> None:
    tell(program)
    assert line(program) == "ok"


def there_is_some(remote: Appliance) -> bool:
    return remote.used_bytes() > MIB


def begin_to_move(one: Appliance, other: Appliance, endpoint: str) -> subprocess.Popen[str]:
    """Return when its memory is being sent to `endpoint`, by which `other` is reached."""
    command = [REMOTEGPU, "migrate", "--appliance", one.endpoint, lease(one), "--to", endpoint]
    moving = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(lambda: there_is_some(other), 30, "its memory is being sent")
    return moving


def nothing_is_left(remote: Appliance) -> None:
    until(lambda: not leases(remote) and remote.leased_bytes() == 0 and not remote.workers(), 20, "nothing is left")


def test_a_program_continues_where_its_lease_is_moved(two: tuple[Appliance, Appliance]) -> None:
    one, other = two
    with keeping(one, 200) as program:
        for here, there in ((one, other), (other, one), (one, other)):
            name, leased = lease(here), here.leased_bytes()
            assert "200.0 MiB" in moved(here, there)
            computes(program)
            (state,) = leases(there)
            assert str(state["lease_id"]).startswith(name)
            assert (state["sessions"], there.leased_bytes()) == (1, leased)
            assert 200 * MIB <= there.used_bytes() <= 202 * MIB
            nothing_is_left(here)
        errors = end(program)
    assert errors.count("has moved to") == 3
    # Its holder has followed, and gives it back there.
    nothing_is_left(other)


def test_allocations_end_where_they_did(two: tuple[Appliance, Appliance]) -> None:
    one, other = two
    with one.start("past_the_end.py", stdin=subprocess.PIPE) as program:
        assert line(program) == "ready"
        computes(program)
        moved(one, other)
        computes(program)
        end(program)
    nothing_is_left(other)


def test_all_processes_of_a_lease_move_and_new_ones_follow(two: tuple[Appliance, Appliance]) -> None:
    one, other = two
    keep = f"{sys.executable} {PROGRAMS}/keep_and_check.py 8"
    # The second gets its lines from the first.
    script = f"{keep} | tee /dev/stderr | {keep}; {sys.executable} {PROGRAMS}/vector_add.py"
    with one.start("sh", "-c", script, share="0.5", stdin=subprocess.PIPE) as program:
        # Of the second; the line of the first was its first order.
        assert line(program) == "ready"
        assert line(program) == "ok"
        assert leases(one)[0]["sessions"] == 2
        moved(one, other)
        assert leases(other)[0]["sessions"] == 2
        computes(program)
        # They end, and another one begins on a lease that its environment says to be elsewhere.
        errors = end(program)
    assert "has moved to" in errors
    nothing_is_left(one)
    nothing_is_left(other)


def test_over_tls_and_through_grpc(tmp_path: Path) -> None:
    certificate(tmp_path, "server", x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    pem = str(tmp_path / "server.pem")
    options = ("--cert", pem, "--key", str(tmp_path / "server.key"))
    both = [Appliance(*options, memory_mib=1024) for _ in range(2)]
    os.environ["REMOTEGPU_CA"] = pem
    try:
        for each in both:
            each.wait_until_ready()
        one, other = both
        for carrier in ("direct", "grpc"):
            os.environ["REMOTEGPU_CARRIER"] = carrier
            with keeping(one, 64) as program:
                moved(one, other)
                computes(program)
                moved(other, one)
                computes(program)
                end(program)
    finally:
        del os.environ["REMOTEGPU_CA"]
        os.environ.pop("REMOTEGPU_CARRIER", None)
        for each in both:
            each.stop()


@pytest.mark.parametrize("tls", [False, True])
def test_a_move_sends_no_faster_than_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, tls: bool) -> None:
    options: tuple[str, ...] = ()
    if tls:
        certificate(tmp_path, "server", x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
        options = ("--cert", str(tmp_path / "server.pem"), "--key", str(tmp_path / "server.key"))
        monkeypatch.setenv("REMOTEGPU_CA", str(tmp_path / "server.pem"))
    with (
        appliance(*options, "--move-bandwidth", "50MiB", memory_mib=1024) as one,
        appliance(*options, memory_mib=1024) as other,
        keeping(one, 200) as program,
    ):
        seconds = re.search(r"in ([0-9.]+) s", moved(one, other))
        # The kernel lets a little through at first.
        assert seconds and float(seconds[1]) > 3
        computes(program)
        end(program)


def test_only_what_changes_meanwhile_is_sent_twice(two: tuple[Appliance, Appliance]) -> None:
    one, other = two
    with slowly(other) as (place, _), keeping(one, 200) as program:
        moving = begin_to_move(one, other, place.endpoint)
        times = 0
        while moving.poll() is None:
            # It computes while most of its memory travels, and half of that changes.
            computes(program)
            times += 1
        output, errors = moving.communicate()
        assert moving.returncode == 0, errors
        assert "300.0 MiB" in output
        assert times > 3
        computes(program)
        end(program)


def test_what_takes_the_place_of_memory_while_it_is_sent_is_right() -> None:
    """More memory comes to the addresses of what was there when the move began, and is sent from there."""
    with (
        appliance("--move-bandwidth", "60MiB", memory_mib=1024) as one,
        appliance(memory_mib=1024) as other,
        one.start("replace_while_sent.py", share="0.9", stdin=subprocess.PIPE) as program,
    ):
        assert line(program) == "ready"
        moving = begin_to_move(one, other, other.endpoint)
        tell(program)
        assert line(program) == "replaced"
        assert moving.poll() is None
        errors = moving.communicate()[1]
        assert moving.returncode == 0, errors
        computes(program)


def test_a_lease_comes_back_before_what_it_had_is_free(two: tuple[Appliance, Appliance]) -> None:
    """It fits only when its own memory, which is still being overwritten, is free."""
    with keeping(two[0], 400, share="0.9") as program:
        for at in range(6):
            moved(two[at % 2], two[(at + 1) % 2])
        computes(program)
        end(program)
    for remote in two:
        nothing_is_left(remote)


@pytest.mark.parametrize("seed", [1, 2])
def test_memory_that_comes_and_goes_while_it_is_sent_is_right(seed: int) -> None:
    """Allocations and mappings of a program that runs while its memory is sent, slowly enough that much happens."""
    with contextlib.ExitStack() as stack:
        two = [stack.enter_context(appliance("--move-bandwidth", "60MiB", memory_mib=2048)) for _ in range(2)]
        one, other = two
        with one.start("come_and_go.py", str(seed), share="0.5", stdin=subprocess.PIPE) as program:
            assert line(program) == "ready"
            for here, there in ((one, other), (other, one)):
                moved(here, there)
            output, errors = program.communicate(timeout=60)
        assert program.returncode == 0, errors
        assert int(output.split()[0]) > 3, output
        for remote in two:
            nothing_is_left(remote)


def test_what_cannot_be_the_same_there_is_refused_by_name(two: tuple[Appliance, Appliance]) -> None:
    one, other = two
    with keeping(one, 64, share="0.9") as program:
        with keeping(other, 8) as full:
            stays(one, other, "NoRoom")
            end(full)
        computes(program)
        with appliance(memory_mib=512) as small:
            stays(one, small, "NoRoom")
        computes(program)
        with appliance("--grace", "0s") as hasty:
            stays(one, hasty, "NoGrace")
        with appliance(profile="hostile") as unlucky:
            stays(one, unlucky, "RangeTaken")
        computes(program)
        with appliance(profile="null-h100") as another:
            stays(one, another, "OtherGpuModel: remotegpu software GPU here and ")
        computes(program)
        end(program)
    nothing_is_left(one)
    nothing_is_left(other)


def test_what_is_suspended_continues_where_it_is_moved(two: tuple[Appliance, Appliance]) -> None:
    one, other = two
    with keeping(one, 400, share="0.9") as program:
        assert one.cli("suspend", lease(one), timeout=60).returncode == 0
        tell(program)
        # Another program has the memory that it had.
        with keeping(one, 400, share="0.9") as visitor:
            (suspended,) = [str(each["lease_id"]) for each in leases(one) if each["suspended"]]
            with keeping(other, 8) as full:
                refused = one.cli("migrate", suspended, "--to", other.endpoint, timeout=100)
                assert (refused.returncode, "NoRoom" in refused.stderr) == (BUSY, True), refused.stderr
                (still,) = [str(each["lease_id"]) for each in leases(one) if each["suspended"]]
                assert still == suspended
                end(full)
            done = one.cli("migrate", suspended, "--to", other.endpoint, timeout=100)
            assert done.returncode == 0, done.stderr
            assert "400.0 MiB" in done.stdout
            assert line(program) == "ok"
            assert not any(each["suspended"] for each in leases(one) + leases(other))
            computes(visitor)
            end(visitor)
        nothing_is_left(one)
        # It can be suspended there as anywhere, and comes back.
        assert other.cli("suspend", lease(other), timeout=60).returncode == 0
        moved(other, one)
        computes(program)
        errors = end(program)
    assert errors.count("has moved to") == 2
    assert errors.count("is back after") == 2
    nothing_is_left(one)
    nothing_is_left(other)


def test_what_is_suspended_stays_so_if_its_move_fails(two: tuple[Appliance, Appliance]) -> None:
    one, _ = two
    with appliance(memory_mib=1024) as there, slowly(there) as (place, data), keeping(one, 200) as program:
        name = lease(one)
        assert one.cli("suspend", name, timeout=60).returncode == 0
        tell(program)
        moving = subprocess.Popen(
            [REMOTEGPU, "migrate", "--appliance", one.endpoint, name, "--to", place.endpoint],
            stderr=subprocess.PIPE,
            text=True,
        )
        until(lambda: there.used_bytes() > 100 * MIB, 30, "its memory is there")
        data.cut()
        _, errors = moving.communicate(timeout=100)
        assert moving.returncode == BUSY, errors
        (state,) = leases(one)
        assert state["suspended"]
        assert one.cli("resume", name, timeout=60).returncode == 0
        assert line(program) == "ok"
        computes(program)
        nothing_is_left(there)
        end(program)


def test_programs_that_share_memory_are_refused_by_name(two: tuple[Appliance, Appliance]) -> None:
    one, other = two
    with one.start("share_and_wait.py", stdin=subprocess.PIPE) as program:
        assert line(program) == "ready"
        stays(one, other, "SharedMemory")
        end(program)


def test_its_user_moves_a_lease_and_others_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = tmp_path / "tokens"
    ann, bob = "a" * 32, "b" * 32
    tokens.write_text(f"[user]\nann:{ann}\nbob:{bob}\n")
    tokens.chmod(0o600)
    monkeypatch.setenv("REMOTEGPU_TOKEN", ann)
    with (
        appliance("--tokens", str(tokens), memory_mib=1024) as other,
        appliance("--tokens", str(tokens), "--move-to", other.endpoint, memory_mib=1024) as one,
        keeping(one, 8) as program,
    ):
        name = lease(one)
        monkeypatch.setenv("REMOTEGPU_TOKEN", bob)
        refused = one.cli("migrate", name, "--to", other.endpoint)
        assert refused.returncode != 0
        assert "no lease" in refused.stderr
        monkeypatch.setenv("REMOTEGPU_TOKEN", "c" * 32)
        assert one.cli("migrate", name, "--to", other.endpoint).returncode == DENIED
        monkeypatch.setenv("REMOTEGPU_TOKEN", ann)
        moved(one, other)
        assert len(leases(other)) == 1
        # There no administrator has named a place for users.
        back = migrate(other, one)
        assert (back.returncode, "only to where --move-to" in back.stderr) == (DENIED, True), back.stderr
        computes(program)
        end(program)


@contextlib.contextmanager
def slowly(remote: Appliance) -> Iterator[tuple[Appliance, FaultProxy]]:
    """The appliance behind an address whose data port lets 20 MB/s through."""
    host, _, port = remote.endpoint.rpartition(":")
    elsewhere = "127.0.0.2"
    with (
        FaultProxy(host, int(port), listen_host=elsewhere, listen_port=int(port)),
        FaultProxy(host, int(port) + 1, listen_host=elsewhere, listen_port=int(port) + 1) as data,
    ):
        data.behave(Line(megabits=160), Way.OUT)
        place = Appliance.__new__(Appliance)
        place.endpoint, place.process = f"{elsewhere}:{port}", remote.process
        yield place, data


def stands_still(program: subprocess.Popen[str]) -> None:
    """It is told to compute until it does not answer; then it still owes an answer."""
    assert program.stdout is not None
    tell(program)
    while select.select([program.stdout], [], [], 1.0)[0]:
        assert line(program) == "ok"
        tell(program)


@pytest.mark.parametrize("when", ["runs", "stands still"])
@pytest.mark.parametrize("fault", ["cut", "worker killed", "appliance killed"])
def test_a_move_that_fails_half_way_changes_nothing(two: tuple[Appliance, Appliance], fault: str, when: str) -> None:
    one, _ = two
    with appliance(memory_mib=1024) as there, slowly(there) as (place, data), keeping(one, 200) as program:
        moving = subprocess.Popen(
            [REMOTEGPU, "migrate", "--appliance", one.endpoint, lease(one), "--to", place.endpoint],
            stderr=subprocess.PIPE,
            text=True,
        )
        until(lambda: there_is_some(there), 30, "its memory is being sent")
        if when == "runs":
            computes(program)
            tell(program)
        else:
            stands_still(program)
        hurt: dict[str, Callable[[], Any]] = {
            "cut": data.cut,
            "worker killed": lambda: os.kill(there.workers()[0], signal.SIGKILL),
            "appliance killed": there.process.kill,
        }
        hurt[fault]()
        _, errors = moving.communicate(timeout=100)
        assert moving.returncode == BUSY, errors
        assert "it stays here" in errors
        assert line(program) == "ok"
        computes(program)
        assert one.used_bytes() >= 200 * MIB
        if fault != "appliance killed":
            nothing_is_left(there)
        end(program)


@pytest.mark.parametrize("when", ["runs", "stands still"])
def test_a_worker_that_dies_on_the_way_is_an_error_of_its_program(two: tuple[Appliance, Appliance], when: str) -> None:
    one, _ = two
    with appliance(memory_mib=1024) as there, slowly(there) as (place, _), keeping(one, 200) as program:
        moving = subprocess.Popen(
            [REMOTEGPU, "migrate", "--appliance", one.endpoint, lease(one), "--to", place.endpoint],
            stderr=subprocess.PIPE,
            text=True,
        )
        until(lambda: there_is_some(there), 30, "its memory is being sent")
        if when == "runs":
            computes(program)
        else:
            stands_still(program)
        (worker,) = one.workers()
        os.kill(worker, signal.SIGKILL)
        _, errors = moving.communicate(timeout=100)
        assert moving.returncode == BUSY, errors
        # One that stood still in a call has perhaps ended by now.
        with contextlib.suppress(BrokenPipeError):
            tell(program)
        _, errors = program.communicate(timeout=60)
        assert program.returncode != 0
        assert "911" in errors
        nothing_is_left(there)


def test_a_training_that_is_moved_often_ends_with_the_same_bits(
    two: tuple[Appliance, Appliance], tmp_path: Path
) -> None:
    one, other = two
    files = tmp_path / "undisturbed.json", tmp_path / "moved.json"
    assert one.run(sys.executable, str(DIGITS), "--json", str(files[0])).returncode == 0
    with moved_often(one, other) as times:
        done = one.run(sys.executable, str(DIGITS), "--json", str(files[1]), timeout=200)
    assert done.returncode == 0, done.stderr
    assert len(times) >= 2
    assert training_results(files[0]) == training_results(files[1])


@pytest.mark.parametrize(
    "program",
    [
        "callbacks.py",
        "copies_back.py",
        "global_address.py",
        "random_graphs.py 1 20",
        "managed_variables.py",
        "mapped_memory.py",
        "mirrored_words.py 12 300 300 2 each 3",
        "pinned_in_kernels.py",
        "query_events.py 40",
        "relay_through_pinned.py",
        "set_again.py 200",
    ],
)
def test_programs_that_check_themselves_are_moved_often(two: tuple[Appliance, Appliance], program: str) -> None:
    with moved_often(*two):
        done = two[0].run(*program.split(), timeout=200)
    assert done.returncode == 0, done.stderr
