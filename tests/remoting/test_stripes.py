"""Large copies over several connections: the bytes are the same as over one, whatever becomes of those."""

from __future__ import annotations

import ipaddress
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from support.certificates import certificate
from support.leases import end, lease, tell
from support.proxied import before_data, cut_often, run
from support.system import MIB, PROGRAMS, Appliance, appliance, line, until

BY_TCP = {"REMOTEGPU_CARRIER": "direct"}
PROGRAM = str(PROGRAMS / "striped_copies.py")
# What a round of the program copies where nothing is lost; each copy but the waited ones at least once by stripes.
STRIPED = 2 * (8 + 13 + 64 + 16 + 9 + 2 * 20) * MIB


@pytest.fixture
def patient() -> Iterator[Appliance]:
    with appliance("--grace", "60s") as it:
        yield it


def counted(remote: Appliance, out: Path, **env: str) -> dict[str, Any]:
    done = remote.run("striped_copies.py", share="0.5", env={"REMOTEGPU_STATS": str(out), **env})
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")
    statistics: dict[str, Any] = json.loads(out.read_text())
    return statistics


@pytest.mark.parametrize("grace", ["0s", "60s"])
def test_large_copies_go_over_stripes(tmp_path: Path, grace: str) -> None:
    with appliance("--grace", grace) as remote:
        striped = [counted(remote, tmp_path / count, REMOTEGPU_STRIPES=count, **BY_TCP) for count in ("1", "3", "0")]
        by_unix = counted(remote, tmp_path / "unix", REMOTEGPU_STRIPES="3")
    assert striped[0]["bytes_striped"] >= STRIPED <= striped[1]["bytes_striped"]
    assert striped[2]["bytes_striped"] == by_unix["bytes_striped"] == 0


def test_over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate(tmp_path, "server", x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    pem, out = tmp_path / "server.pem", tmp_path / "statistics"
    monkeypatch.setenv("REMOTEGPU_STRIPES", "2")
    monkeypatch.setenv("REMOTEGPU_STATS", str(out))
    remote = Appliance("--cert", str(pem), "--key", str(tmp_path / "server.key"))
    try:
        remote.wait_until_ready("--ca", str(pem))
        done = remote.run("striped_copies.py", share="0.5", options=("--ca", str(pem)))
    finally:
        remote.stop()
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
    assert json.loads(out.read_text())["bytes_striped"] >= STRIPED


def behind(remote: Appliance, monkeypatch: pytest.MonkeyPatch, out: Path) -> subprocess.Popen[str]:
    monkeypatch.setenv("REMOTEGPU_STRIPES", "3")
    monkeypatch.setenv("REMOTEGPU_STATS", str(out))
    return run(remote, PROGRAM)


@pytest.mark.parametrize("count", [61, 100_000, 5 * MIB + 1])
def test_stripes_are_cut(patient: Appliance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    out = tmp_path / "statistics"
    with before_data(patient) as data:
        data.cut_after(count, b"RGS1")
        program = behind(patient, monkeypatch, out)
        output, errors = program.communicate(timeout=100)
    assert (program.returncode, output, errors) == (0, "ok\n", "")
    striped = json.loads(out.read_text())["bytes_striped"]
    # Bytes that the kernel took and the peer never got are among them.
    assert striped < 100 * MIB
    assert count < MIB or striped > count


def test_everything_is_cut_every_200_ms(patient: Appliance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with before_data(patient) as data:
        program = behind(patient, monkeypatch, tmp_path / "statistics")
        # Lease, session and a stripe.
        until(lambda: data.made >= 3, 60, "stripes are opened")
        with cut_often(data) as cuts:
            until(lambda: len(cuts) >= 20 or program.poll() is not None, 60, "it was cut often")
        output, errors = program.communicate(timeout=100)
    assert (program.returncode, output) == (0, "ok\n"), errors
    assert len(cuts) > 3


def test_stripes_that_are_refused_are_none(patient: Appliance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "statistics"
    with before_data(patient) as data:
        data.accept(b"RGP1", b"RGL1", b"RGR1")
        program = behind(patient, monkeypatch, out)
        output, errors = program.communicate(timeout=100)
    assert (program.returncode, output, errors) == (0, "ok\n", "")
    assert json.loads(out.read_text())["bytes_striped"] == 0


def test_a_session_moves_and_is_suspended(tmp_path: Path) -> None:
    out = tmp_path / "statistics"
    env = {"REMOTEGPU_STATS": str(out), "REMOTEGPU_STRIPES": "2", **BY_TCP}
    with (
        appliance() as one,
        appliance() as other,
        one.start("striped_copies.py", "again", share="0.5", env=env, stdin=subprocess.PIPE) as program,
    ):
        assert line(program) == "ok"
        name = lease(one)
        for order in ("suspend", "resume"):
            done = one.cli(order, name, timeout=100)
            assert done.returncode == 0, done.stderr
        tell(program)
        assert line(program) == "ok"
        done = one.cli("migrate", name, "--to", other.endpoint, timeout=100)
        assert done.returncode == 0, done.stderr
        tell(program)
        assert line(program) == "ok"
        end(program)
    assert json.loads(out.read_text())["bytes_striped"] >= 3 * STRIPED


def test_a_number_that_is_none_is_told(tmp_path: Path) -> None:
    with appliance() as remote:
        done = remote.run("vector_add.py", env={"REMOTEGPU_STRIPES": "many", **BY_TCP})
    assert done.returncode == 0
    assert "REMOTEGPU_STRIPES=many is no number from 0 to 8" in done.stderr
