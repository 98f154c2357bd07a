"""Suspending a lease and resuming it: its programs wait and lose nothing, others have the share meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.leases import end, keeping, lease, leases, suspended_often, tell
from support.system import MIB, PROGRAMS, REMOTEGPU, ROOT, Appliance, appliance, line, training_results, until

BUSY, USAGE = 75, 2
STICKY = 911
DIGITS = ROOT / "examples/01-digits/train.py"


@pytest.fixture(scope="module")
def remote() -> Iterator[Appliance]:
    # A killed program gives its share back at once.
    with appliance("--grace", "0s", memory_mib=1024) as it:
        yield it


def change(remote: Appliance, what: str, name: str) -> str:
    done = remote.cli(what, name, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_another_program_has_the_gpu_meanwhile(remote: Appliance) -> None:
    with keeping(remote, 400, share="0.9") as program:
        name = lease(remote)
        for _ in range(2):
            assert "400.0 MiB" in change(remote, "suspend", name)
            (state,) = leases(remote)
            assert state["suspended"] == "by an administrator"
            assert 400 * MIB <= state["image_bytes"] <= 402 * MIB
            assert remote.leased_bytes() < 2 * MIB
            tell(program)
            other = remote.run("keep_and_check.py", "700", share="0.95", options=("--no-wait",), timeout=60)
            assert other.returncode == 0, other.stderr
            change(remote, "resume", name)
            assert line(program) == "ok"
            (state,) = leases(remote)
            assert (state["suspended"], state["image_bytes"]) == ("", 0)
        errors = end(program)
    assert errors.count("is suspended (by an administrator); CUDA calls wait for it") == 2
    assert errors.count("the program continues") == 2
    assert remote.leased_bytes() == 0


def test_allocations_end_where_they_did(remote: Appliance) -> None:
    with remote.start("past_the_end.py", stdin=subprocess.PIPE) as program:
        assert line(program) == "ready"
        name = lease(remote)
        change(remote, "suspend", name)
        change(remote, "resume", name)
        tell(program)
        assert line(program) == "ok"
        end(program)


def test_a_resume_waits_for_its_turn(remote: Appliance) -> None:
    with keeping(remote, 64) as program:
        name = lease(remote)
        change(remote, "suspend", name)
        with keeping(remote, 64, share="0.75") as other:
            tell(program)
            resuming = subprocess.Popen(
                [REMOTEGPU, "resume", "--appliance", remote.endpoint, name], stderr=subprocess.PIPE, text=True
            )
            assert resuming.stderr is not None
            assert "its share of" in resuming.stderr.readline()
            again = remote.cli("resume", name)
            assert again.returncode == BUSY
            assert "already" in again.stderr
            # A later program waits behind it, however little it asks for.
            late = remote.run("vector_add.py", share="0.01", options=("--no-wait",))
            assert late.returncode == BUSY
            assert "1 request ahead" in late.stderr
            tell(other)
            assert line(other) == "ok"
            end(other)
        resuming.communicate(timeout=60)
        assert resuming.returncode == 0
        assert line(program) == "ok"
        end(program)


def test_a_process_that_starts_meanwhile_waits(remote: Appliance) -> None:
    both = f"{sys.executable} {PROGRAMS}/keep_and_check.py 8; {sys.executable} {PROGRAMS}/vector_add.py"
    with remote.start("sh", "-c", both, share="0.5", stdin=subprocess.PIPE) as program:
        assert line(program) == "ready"
        name = lease(remote)
        change(remote, "suspend", name)
        # The first one ends without another CUDA call, and the second one begins.
        assert program.stdin is not None
        program.stdin.close()
        program.stdin = None
        until(lambda: leases(remote)[0]["sessions"] == 0, 20, "the first program has ended")
        change(remote, "resume", name)
        assert line(program) == "ok"
        end(program)


def test_without_room_nothing_changes() -> None:
    with appliance("--suspend-memory", "10MiB") as remote, keeping(remote, 64) as program:
        refused = remote.cli("suspend", lease(remote), timeout=60)
        assert refused.returncode == BUSY
        assert "NoRoom" in refused.stderr
        assert "of 10.0 MiB in memory (--suspend-memory)" in refused.stderr
        tell(program)
        assert line(program) == "ok"
        end(program)


def test_what_memory_has_no_room_for_goes_to_the_disk(tmp_path: Path) -> None:
    options = ("--suspend-memory", "10MiB", "--suspend-disk", f"{tmp_path}=256MiB")
    with appliance(*options) as remote, keeping(remote, 128) as program:
        before = os.statvfs(tmp_path).f_bfree
        change(remote, "suspend", lease(remote))
        assert not list(tmp_path.iterdir()), "it has no name"
        assert (before - os.statvfs(tmp_path).f_bfree) * os.statvfs(tmp_path).f_frsize > 100 * MIB
        tell(program)
        change(remote, "resume", lease(remote))
        assert line(program) == "ok"
        end(program)


def test_a_lease_that_ends_while_it_is_suspended_leaves_nothing(remote: Appliance) -> None:
    with keeping(remote, 64) as program:
        change(remote, "suspend", lease(remote))
        os.killpg(program.pid, signal.SIGKILL)
    until(lambda: not leases(remote) and remote.leased_bytes() == 0 and not remote.workers(), 20, "nothing is left")


def test_a_worker_that_dies_while_it_is_suspended_is_an_error(remote: Appliance) -> None:
    with keeping(remote, 64) as program:
        name = lease(remote)
        change(remote, "suspend", name)
        (worker,) = remote.workers()
        os.kill(worker, signal.SIGKILL)
        change(remote, "resume", name)
        tell(program)
        _, errors = program.communicate(timeout=60)
        assert program.returncode != 0
        assert str(STICKY) in errors
    until(lambda: remote.leased_bytes() == 0, 20, "nothing is left")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("what", ["suspend", "resume"])
def test_a_worker_that_is_killed_on_the_way_takes_nothing_from_the_other(
    remote: Appliance, tmp_path: Path, what: str
) -> None:
    """One of two programs of a lease loses its worker, at moments spread over the change."""
    keep = f"{sys.executable} {PROGRAMS}/keep_and_check.py 100"
    names = ("one", "two")
    each = [f"{keep} < {tmp_path}/{name}.in > {tmp_path}/{name}.out 2>&1 &" for name in names]
    for moment in range(8):
        for name in names:
            os.mkfifo(tmp_path / f"{name}.in")
            (tmp_path / f"{name}.out").write_text("")
        with (
            remote.start("sh", "-c", " ".join([*each, "wait"]), share="0.5") as programs,
            (tmp_path / "one.in").open("w") as one,
            (tmp_path / "two.in").open("w") as two,
        ):

            def said(name: str) -> list[str]:
                return (tmp_path / f"{name}.out").read_text().splitlines()

            until(lambda: [said(name) for name in names] == [["ready"]] * 2, 60, "both have their memory")
            # Both ends are open, and no other process is to find them.
            for name in names:
                (tmp_path / f"{name}.in").unlink()
            lease_id = lease(remote)
            if what == "resume":
                change(remote, "suspend", lease_id)
            victim, _ = remote.workers()
            command = [REMOTEGPU, what, "--appliance", remote.endpoint, lease_id]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as changing:
                begun = time.monotonic()
                until(lambda moment=moment, begun=begun: time.monotonic() >= begun + moment * 0.06, 5, "its moment")  # type: ignore[misc]
                os.kill(victim, signal.SIGKILL)
                changing.communicate(timeout=100)
            # Whatever the result, the lease runs at the end.
            if leases(remote)[0]["suspended"]:
                change(remote, "resume", lease_id)
            for program in (one, two):
                program.write("again\n")
            one.close()
            two.close()
            programs.communicate(timeout=60)
            last = sorted(said(name)[-1] for name in names)
            assert last[1] == "ok" and str(STICKY) in last[0], last
        until(lambda: remote.leased_bytes() == 0 and not remote.workers(), 20, "nothing is left")


def test_programs_that_share_memory_are_refused_by_name(remote: Appliance) -> None:
    with remote.start("share_and_wait.py", stdin=subprocess.PIPE) as program:
        assert line(program) == "ready"
        refused = remote.cli("suspend", lease(remote), timeout=60)
        assert refused.returncode == BUSY
        assert "SharedMemory" in refused.stderr
        end(program)


def test_only_its_user_and_administrators_suspend_a_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = tmp_path / "tokens"
    root, ann, bob = ("r" * 32, "a" * 32, "b" * 32)
    tokens.write_text(f"[admin]\nroot:{root}\n[user]\nann:{ann}\nbob:{bob}\n")
    tokens.chmod(0o600)
    remote = Appliance("--tokens", str(tokens), memory_mib=1024)
    try:
        monkeypatch.setenv("REMOTEGPU_TOKEN", ann)
        remote.wait_until_ready()
        with keeping(remote, 8) as program:
            name = lease(remote)
            monkeypatch.setenv("REMOTEGPU_TOKEN", bob)
            refused = remote.cli("suspend", name)
            assert refused.returncode == USAGE
            assert "no lease" in refused.stderr
            monkeypatch.setenv("REMOTEGPU_TOKEN", root)
            change(remote, "suspend", name)
            monkeypatch.setenv("REMOTEGPU_TOKEN", ann)
            assert leases(remote)[0]["suspended"] == "by an administrator"
            change(remote, "resume", name)
            tell(program)
            assert line(program) == "ok"
            end(program)
    finally:
        remote.stop()


def test_a_training_that_is_suspended_often_ends_with_the_same_bits(remote: Appliance, tmp_path: Path) -> None:
    files = tmp_path / "undisturbed.json", tmp_path / "suspended.json"
    assert remote.run(sys.executable, str(DIGITS), "--json", str(files[0])).returncode == 0
    with suspended_often(remote) as times:
        done = remote.run(sys.executable, str(DIGITS), "--json", str(files[1]), timeout=200)
    assert done.returncode == 0, done.stderr
    assert len(times) >= 2
    assert training_results(files[0]) == training_results(files[1])


@pytest.mark.parametrize(
    "program",
    [
        "callbacks.py",
        "copies_back.py",
        "random_graphs.py 1 20",
        "mapped_memory.py",
        "mirrored_words.py 12 300 300 1 each 3",
        "pinned_in_kernels.py",
        "relay_through_pinned.py",
    ],
)
def test_programs_that_check_themselves_are_suspended_often(remote: Appliance, program: str) -> None:
    with suspended_often(remote):
        done = remote.run(*program.split(), timeout=200)
    assert done.returncode == 0, done.stderr
