"""Sessions outlive their connections for as long as the appliance says (`--grace`); nothing is lost or done twice."""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from support.certificates import certificate
from support.faultproxy import Way
from support.proxied import BEHIND_PROXIES, before_data, cut_often, reach, run
from support.system import PROGRAMS, REMOTEGPU, ROOT, Appliance, appliance, line, training_results, until

STICKY = 911  # CUDA_ERROR_EXTERNAL_DEVICE
DIGITS = ROOT / "examples/01-digits/train.py"


@pytest.fixture
def patient() -> Iterator[Appliance]:
    with appliance("--grace", "60s") as it:
        yield it


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    file = tmp_path_factory.mktemp("undisturbed") / "results.json"
    with appliance() as remote:
        done = remote.run(sys.executable, str(DIGITS), "--json", str(file))
    assert done.returncode == 0, done.stderr
    return training_results(file)


@pytest.mark.parametrize("carrier", ["direct", "grpc"])
def test_a_training_that_is_cut_every_200_ms_ends_with_the_same_bits(
    patient: Appliance, undisturbed: dict[str, object], tmp_path: Path, carrier: str
) -> None:
    file = tmp_path / "results.json"
    with before_data(patient) as data:
        program = run(patient, str(DIGITS), "--json", str(file), carrier=carrier)
        with cut_often(data) as cuts:
            _, errors = program.communicate(timeout=100)
    assert program.returncode == 0, errors
    assert len(cuts) >= 10
    assert training_results(file) == undisturbed
    until(lambda: patient.leased_bytes() == 0, 5, "a program that ends gives its share back at once")


@pytest.mark.parametrize("seconds", [1, 5, 20])
def test_a_network_that_is_away_for_so_long_changes_no_result(
    patient: Appliance, undisturbed: dict[str, object], tmp_path: Path, seconds: int
) -> None:
    file = tmp_path / "results.json"
    with before_data(patient) as data, run(patient, str(DIGITS), "--json", str(file)) as program:
        until(lambda: data.made >= 2, 20, "the lease is held, and the session is there")
        data.refuse()
        data.cut()
        begun = time.monotonic()
        until(lambda: time.monotonic() - begun > seconds, seconds + 5, "so long")
        assert program.poll() is None
        data.accept()
        _, errors = program.communicate(timeout=100)
    assert program.returncode == 0, errors
    assert training_results(file) == undisturbed


CUT = [
    "callbacks.py",
    "copies_back.py",
    "mirrored_words.py 20 1024 300 6 each",
    "random_graphs.py 1 20",
    "vector_add.py",
]


@pytest.mark.parametrize("program", CUT)
@pytest.mark.parametrize("carrier", ["direct", "grpc"])
def test_programs_that_check_themselves_are_cut_every_200_ms(patient: Appliance, program: str, carrier: str) -> None:
    name, *arguments = program.split()
    with before_data(patient) as data, cut_often(data):
        process = run(patient, str(PROGRAMS / name), *arguments, carrier=carrier)
        _, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors


@pytest.mark.parametrize(
    ("carrier", "tls", "every"),
    # A record of TLS has up to 16 KiB, and gRPC drops what it has received when its connection breaks.
    [("direct", False, 997), ("direct", True, 50021), ("grpc", False, 65003), ("grpc", True, 100003)],
)
def test_programs_are_cut_inside_of_frames_over_every_carrier(
    tmp_path: Path, carrier: str, tls: bool, every: int
) -> None:
    options: tuple[str, ...] = ()
    if tls:
        certificate(tmp_path, "server", x509.IPAddress(ipaddress.ip_address(BEHIND_PROXIES)))
        options = ("--cert", str(tmp_path / "server.pem"), "--key", str(tmp_path / "server.key"))
    authority = ("--ca", str(tmp_path / "server.pem")) if tls else ()
    remote = Appliance("--grace", "60s", *options)
    try:
        with before_data(remote) as data:
            reach(remote, *authority)
            data.cut_after(every)
            # What mirrors send is small.
            mirrors = f"mirrored_words.py 12 256 {10 if every < 1000 else 400} 3 each"
            for program in ("copies_back.py", "random_graphs.py 1 5", mirrors):
                name, *arguments = program.split()
                made = data.made
                process = run(remote, str(PROGRAMS / name), *arguments, options=authority, carrier=carrier)
                _, errors = process.communicate(timeout=100)
                assert process.returncode == 0, errors
                assert data.made - made >= 10, "it was cut that often"
    finally:
        remote.stop()


def test_a_program_begins_although_its_first_connections_break_in_the_handshake(tmp_path: Path) -> None:
    certificate(tmp_path, "server", x509.IPAddress(ipaddress.ip_address(BEHIND_PROXIES)))
    pem = tmp_path / "server.pem"
    remote = Appliance("--grace", "60s", "--cert", str(pem), "--key", str(tmp_path / "server.key"))
    try:
        with before_data(remote) as data:
            reach(remote, "--ca", str(pem))
            made = data.made
            program = run(remote, str(PROGRAMS / "vector_add.py"), options=("--ca", str(pem)))
            until(lambda: data.made > made, 30, "the lease is held")
            data.cut_after(200)
            until(lambda: data.made - made >= 4, 30, "the program tries again")
            data.cut_after(0)
            _, errors = program.communicate(timeout=60)
            assert program.returncode == 0, errors
    finally:
        remote.stop()


def test_cupy_is_cut_every_200_ms(patient: Appliance) -> None:
    program = [str(ROOT / "tests/frameworks/programs/cupy_arrays.py"), "broadcasting_and_views", "sorting_and_scanning"]
    native = subprocess.run(
        [REMOTEGPU, "run", "--native", "-p", "0.25", "--", sys.executable, *program], capture_output=True, text=True
    )
    assert native.returncode == 0, native.stderr
    with before_data(patient) as data, cut_often(data) as cuts:
        process = run(patient, *program)
        digests, errors = process.communicate(timeout=110)
    assert (process.returncode, digests) == (0, native.stdout), errors
    assert len(cuts) >= 3


def test_over_tls(tmp_path: Path, undisturbed: dict[str, object]) -> None:
    certificate(tmp_path, "server", x509.IPAddress(ipaddress.ip_address(BEHIND_PROXIES)))
    pem, file = tmp_path / "server.pem", tmp_path / "results.json"
    remote = Appliance("--grace", "60s", "--cert", str(pem), "--key", str(tmp_path / "server.key"))
    try:
        with before_data(remote) as data:
            reach(remote, "--ca", str(pem))
            program = run(remote, str(DIGITS), "--json", str(file), options=("--ca", str(pem)))
            with cut_often(data) as cuts:
                _, errors = program.communicate(timeout=100)
    finally:
        remote.stop()
    assert program.returncode == 0, errors
    assert len(cuts) >= 10
    assert training_results(file) == undisturbed


def test_a_gateway_that_dies_ends_no_session(patient: Appliance) -> None:
    with patient.start("endless_calls.py", "3", env={"REMOTEGPU_CARRIER": "grpc"}) as program:
        assert line(program) == "ready"
        found = subprocess.run(
            ["pgrep", "-P", str(patient.process.pid), "-f", "remotegpu-gateway"], capture_output=True, text=True
        )
        os.kill(int(found.stdout), signal.SIGKILL)
        assert line(program) == "finished"


def test_who_waits_says_so_and_goes_on(patient: Appliance) -> None:
    with before_data(patient) as data:
        program = run(patient, str(PROGRAMS / "endless_calls.py"), "4")
        with program:
            assert line(program) == "ready"
            data.refuse()
            data.cut()
            assert program.stderr is not None
            assert patient.endpoint.rpartition(":")[2] in program.stderr.readline(), "that it waits"
            data.accept()
            assert line(program) == "finished"
            assert len(program.stderr.readlines()) == 1, "that it is back"


def test_a_session_comes_back_over_the_other_carrier(patient: Appliance) -> None:
    lease, direct, grpc = b"RGL1", b"RGR1", b"PRI "
    with before_data(patient) as data:
        data.accept(lease, grpc)
        with run(patient, str(PROGRAMS / "endless_calls.py"), "4", carrier="auto") as program:
            assert line(program) == "ready"
            for way in (direct, grpc):
                data.accept(lease, way)
                made = data.made
                data.cut()
                # The lease's connection and the session's.
                until(lambda made=made: data.made >= made + 2, 20, "both are back")  # type: ignore[misc]
            assert line(program) == "finished"


def test_a_connection_on_which_nothing_comes_any_more_is_replaced(patient: Appliance) -> None:
    """Its ends acknowledge all bytes, as those of TLS that wait for the rest of a record whose length was damaged."""
    with before_data(patient) as data, run(patient, str(PROGRAMS / "endless_calls.py"), "20") as program:
        assert line(program) == "ready"
        made = data.made
        data.swallow(Way.BACK)
        until(lambda: data.silenced, 10, "an answer was swallowed")
        data.carry()
        assert line(program) == "finished"
        assert data.made == made + 1


def test_an_attempt_that_was_recorded_or_forged_is_worth_nothing(patient: Appliance) -> None:
    seen = bytearray()
    with before_data(patient, seen.extend) as data, run(patient, str(PROGRAMS / "endless_calls.py"), "4") as program:
        assert line(program) == "ready"
        data.cut()
        attempt = until(lambda: seen[seen.find(b"RGR1") :][:68] if b"RGR1" in seen else b"", 20, "it comes back")
        host, _, port = patient.endpoint.rpartition(":")
        for forged in (0, 1):
            with socket.create_connection((host, int(port) + 1), timeout=10) as stranger:
                stranger.sendall(attempt[:30] + bytes([attempt[30] ^ forged]) + attempt[31:])
                assert stranger.recv(1) == b"", "no K"
        assert line(program) == "finished"


def test_after_the_grace_it_is_the_error_of_a_lost_appliance() -> None:
    with appliance("--grace", "2s") as remote, before_data(remote) as data:
        program = run(remote, str(PROGRAMS / "endless_calls.py"))
        with program:
            assert line(program) == "ready"
            data.refuse()
            since = time.monotonic()
            data.cut()
            assert line(program) == f"error {STICKY} {STICKY} {STICKY}"
            assert time.monotonic() - since >= 2
            assert program.stderr is not None
            told = program.stderr.read()
            assert told.count("2 s") >= 1, told
        until(lambda: remote.used_bytes() == 0, 10, "the appliance has given up the session, too")


@pytest.mark.parametrize("how", ["program", "all"])
def test_what_a_killed_program_had_is_back_after_the_grace(how: str) -> None:
    """The appliance cannot tell it from a lost connection, unless its lease ends."""
    with appliance("--grace", "2s") as remote, remote.start("wait_for_ever.py") as runner:
        assert line(runner) == "ready"
        if how == "all":
            os.killpg(runner.pid, signal.SIGKILL)
        else:
            found = subprocess.run(["pgrep", "-P", str(runner.pid)], capture_output=True, text=True)
            os.kill(int(found.stdout.split()[0]), signal.SIGKILL)
        until(lambda: remote.leased_bytes() == 0, 10, "the share is back")
        assert not remote.workers()


def test_devices_of_two_appliances_are_cut_both(patient: Appliance) -> None:
    with (
        appliance("--grace", "60s", profile="hostile") as other,
        before_data(patient) as one,
        before_data(other) as two,
    ):
        ports = [each.endpoint.rpartition(":")[2] for each in (patient, other)]
        where = ",".join(f"{BEHIND_PROXIES}:{port}" for port in ports)
        command = [REMOTEGPU, "run", "--appliance", where, "-n", "2", "-p", "0.25", "--", sys.executable]
        with cut_often(one), cut_often(two):
            done = subprocess.run(
                [*command, str(PROGRAMS / "two_devices.py")], capture_output=True, text=True, timeout=100
            )
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
