"""Clocks that jump by 262 s and back: leases, tickets and sessions last as long as they should, by another clock."""

from __future__ import annotations

import datetime
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.shifted_clock import JUMP, ShiftedClock
from support.system import PROGRAMS, REMOTEGPU, Appliance, line, until

from remotegpu.appliance.leases.leases import HOLD_SECONDS
from remotegpu_operator.appliances.certificates import new_authority, new_leaf

NAME = "appliance"
TOKENS = "[admin]\nroot:token-of-root\n[user]\nalice:token-of-alice\n"


@pytest.fixture
def clock(tmp_path: Path) -> ShiftedClock:
    return ShiftedClock(tmp_path / "clock")


@pytest.fixture
def remote(tmp_path: Path, clock: ShiftedClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Appliance]:
    """With TLS and tokens. Its clock is `clock`, and so is the gateway's."""
    now = datetime.datetime.now(datetime.UTC)
    authority = new_authority(now)
    leaf = new_leaf(authority, (NAME,), now)
    for file, content in (("ca.pem", authority.certificate), ("here.pem", leaf.certificate), ("here.key", leaf.key)):
        (tmp_path / file).write_text(content)
    (tmp_path / "tokens").write_text(TOKENS)
    (tmp_path / "alice").write_text("token-of-alice\n")
    options = ["--cert", str(tmp_path / "here.pem"), "--key", str(tmp_path / "here.key")]
    with monkeypatch.context() as patch:
        for name, value in clock.environment.items():
            patch.setenv(name, value)
        it = Appliance(*options, "--tokens", str(tmp_path / "tokens"))
    try:
        it.wait_until_ready(*access(tmp_path))
        yield it
    finally:
        it.stop()


def access(folder: Path) -> list[str]:
    return ["--ca", str(folder / "ca.pem"), "--server-name", NAME, "--token-file", str(folder / "alice")]


def run(remote: Appliance, folder: Path, *program: str, clock: ShiftedClock | None = None) -> list[str]:
    """The clock is the program's, not that of the command line which starts it."""
    environment = [f"{name}={value}" for name, value in clock.environment.items()] if clock else []
    if clock:
        # Behind what `remotegpu run` preloads.
        environment[0] = f'LD_PRELOAD="$LD_PRELOAD:{clock.environment["LD_PRELOAD"]}"'
    name, *arguments = program
    command = " ".join(["exec", "env", *environment, sys.executable, str(PROGRAMS / name), *arguments])
    return [REMOTEGPU, "run", "--appliance", remote.endpoint, *access(folder), "-p", "0.2", "--", "sh", "-c", command]


def test_an_appliance_whose_clock_jumps_keeps_and_takes_sessions(
    remote: Appliance, clock: ShiftedClock, tmp_path: Path
) -> None:
    """Longer than a lease lives without a holder and a ticket is valid; sessions start while the clock strobes."""
    with subprocess.Popen(
        run(remote, tmp_path, "endless_calls.py", str(HOLD_SECONDS + 6)), stdout=subprocess.PIPE, text=True
    ) as running:
        assert line(running) == "ready"
        strobing = threading.Thread(target=clock.strobe, args=(HOLD_SECONDS + 4,))
        strobing.start()
        while strobing.is_alive():
            done = subprocess.run(run(remote, tmp_path, "vector_add.py"), capture_output=True, text=True, timeout=60)
            assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
        strobing.join()
        assert line(running) == "finished"
    for shift in (JUMP, -JUMP):
        clock.jump(shift)
        done = subprocess.run(run(remote, tmp_path, "vector_add.py"), capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
    until(lambda: remote.cli("ls", "--json", *access(tmp_path)).stdout.count('"client"') == 0, 5, "no lease is left")


@pytest.mark.parametrize("shift", [JUMP, -JUMP])
def test_a_clients_clock_that_is_off_by_minutes_is_no_matter(
    remote: Appliance, clock: ShiftedClock, tmp_path: Path, shift: int
) -> None:
    """Certificates begin five minutes before they are made."""
    own = ShiftedClock(tmp_path / "own")
    own.jump(shift)
    done = subprocess.run(run(remote, tmp_path, "vector_add.py", clock=own), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


def test_a_clock_outside_of_the_certificates_time_is_named(
    remote: Appliance, clock: ShiftedClock, tmp_path: Path
) -> None:
    own = ShiftedClock(tmp_path / "own")
    for shift in (-3600, 200 * 86400):
        own.jump(shift)
        done = subprocess.run(
            run(remote, tmp_path, "vector_add.py", clock=own), capture_output=True, text=True, timeout=60
        )
        assert done.returncode != 0
        assert "clock" in done.stderr
