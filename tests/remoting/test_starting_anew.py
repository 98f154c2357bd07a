"""An appliance's Python restarts (SIGHUP) while its gateway and workers keep running; programs notice nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.leases import end, leases, tell
from support.system import PROGRAMS, ROOT, Appliance, appliance, line, training_results, until

DIGITS = ROOT / "examples/01-digits/train.py"
TIMES = 3


@pytest.fixture
def remote() -> Iterator[Appliance]:
    with appliance("--grace", "5s") as it:
        yield it


def start_anew(remote: Appliance, says: str = "goes on as remotegpu") -> str:
    """Asks for it; the line of the log that says what became of it."""
    remote.process.send_signal(signal.SIGHUP)
    for text in remote.log:
        if says in text:
            return text
    raise AssertionError(f"the appliance ended and never said {says!r}")


def computes(program: subprocess.Popen[str]) -> None:
    tell(program)
    assert line(program) == "ok"


def test_a_training_ends_with_the_same_bits(remote: Appliance, tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.json" for number in range(2)]
    train = [sys.executable, str(DIGITS), "--json"]
    undisturbed = remote.run(*train, str(files[0]))
    assert undisturbed.returncode == 0, undisturbed.stderr
    with remote.start(*train, str(files[1])) as program:
        workers = until(remote.workers, 30, "the training has begun")
        for _ in range(TIMES):
            assert "with 1 leases and 1 sessions" in start_anew(remote)
            assert remote.workers() == workers
        assert program.poll() is None, "it went on meanwhile"
        end(program)
    assert training_results(files[0]) == training_results(files[1])
    until(lambda: remote.leased_bytes() == 0 and not remote.workers(), 20, "nothing is left")


def test_what_was_known_is_known(remote: Appliance) -> None:
    keep = ("keep_and_check.py", "8")
    with (
        remote.start(*keep, stdin=subprocess.PIPE) as stays,
        remote.start(*keep, stdin=subprocess.PIPE) as dies,
        remote.start(*keep, stdin=subprocess.PIPE) as killed,
    ):
        assert {line(program) for program in (stays, dies, killed)} == {"ready"}
        before, used = leases(remote), remote.used_bytes()
        start_anew(remote)
        names = [lease["lease_id"] for lease in before]
        assert [lease["lease_id"] for lease in leases(remote)] == names
        assert remote.used_bytes() == used
        # The second one's holder and program vanish: its grace runs while the appliance restarts.
        os.killpg(dies.pid, signal.SIGKILL)
        start_anew(remote)
        until(lambda: len(leases(remote)) == 2, 20, "the lease without a holder ends after its grace")
        computes(stays)
        # A worker that dies is noticed, and so is a gateway.
        computes(killed)
        end(killed)
        until(lambda: len(leases(remote)) == 1, 10, "a program that ends gives its share back")
        (gateway,) = (
            int(pid)
            for pid in subprocess.run(
                ["pgrep", "-P", str(remote.process.pid), "-f", "remotegpu-gateway"], capture_output=True, text=True
            ).stdout.split()
        )
        os.kill(gateway, signal.SIGKILL)
        until(lambda: remote.cli("doctor").returncode == 0, 20, "there is another gateway")
        computes(stays)
        run = remote.run("vector_add.py")
        assert (run.returncode, run.stdout) == (0, "ok\n"), run.stderr
        (worker,) = remote.workers()
        os.kill(worker, signal.SIGKILL)
        until(lambda: not remote.workers(), 10, "the end of a worker is noticed")
        assert remote.used_bytes() == 0
        _, errors = stays.communicate("again\n", timeout=60)
        assert stays.returncode != 0, errors


def test_a_program_that_begins_meanwhile_waits(remote: Appliance) -> None:
    host, _, port = remote.endpoint.rpartition(":")

    def nobody_answers() -> bool:
        # As gRPC begins; who answers sends its settings.
        with contextlib.suppress(ConnectionError), socket.create_connection((host, int(port)), 5) as connection:
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
            return connection.recv(1) == b""
        return True

    both = f"echo ready; read line; exec {sys.executable} {PROGRAMS}/vector_add.py"
    with remote.start("sh", "-c", both, stdin=subprocess.PIPE) as program:
        assert line(program) == "ready"
        remote.process.send_signal(signal.SIGHUP)
        until(nobody_answers, 20, "it starts anew")
        tell(program)
        end(program)


def test_a_suspended_lease_is_not_handed_over(remote: Appliance) -> None:
    with remote.start("keep_and_check.py", "8", stdin=subprocess.PIPE) as program:
        assert line(program) == "ready"
        name = leases(remote)[0]["lease_id"][:8]
        assert remote.cli("suspend", name).returncode == 0
        assert "is suspended" in start_anew(remote, "does not start anew")
        assert remote.cli("resume", name).returncode == 0
        computes(program)
        start_anew(remote)
        computes(program)
        end(program)


def test_code_that_does_not_start_is_found_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with appliance() as remote, remote.start("keep_and_check.py", "8", stdin=subprocess.PIPE) as program:
        assert line(program) == "ready"
        half = tmp_path / "remotegpu"
        half.mkdir()
        (half / "__init__.py").write_text("raise ImportError('half of it is installed')\n")
        assert "half of it is installed" in start_anew(remote, "does not start anew")
        (half / "__init__.py").unlink()
        half.rmdir()
        computes(program)
        end(program)
