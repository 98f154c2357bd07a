"""Every mistake gets an error code (never success), one line with cause and next step, within 5 seconds."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.system import PROGRAMS, REMOTEGPU, Appliance, Watch, appliance, free_port

REPORT = [sys.executable, str(PROGRAMS / "report_error.py")]


def run(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    started = Watch()
    done = subprocess.run(
        [REMOTEGPU, *arguments], capture_output=True, text=True, timeout=30, env=os.environ | (env or {})
    )
    assert started.within(6), "5 s for the answer, 1 s for Python to start"
    return done


def assert_refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode != 0
    assert done.stderr.strip().count("\n") == 0, done.stderr
    for word in words:
        assert word in done.stderr, (word, done.stderr)


@pytest.fixture(scope="module")
def unharmed() -> Iterator[Appliance]:
    """No mistake changes this appliance, so that one serves all tests."""
    with appliance() as it:
        yield it


@pytest.mark.parametrize("fraction", ["0", "-1", "1.5", "abc", "nan", "1e-9"])
def test_impossible_fractions(fraction: str) -> None:
    assert_refused(run("run", "-p", fraction, "--", "true"), fraction)


@pytest.mark.parametrize("memory", ["0", "-5", "lots", "9EiB"])
def test_impossible_memory(unharmed: Appliance, memory: str) -> None:
    assert_refused(run("run", "--appliance", unharmed.endpoint, "--no-wait", "-m", memory, "--", "true"))


def test_no_appliance() -> None:
    endpoint = f"127.0.0.1:{free_port()}"
    assert_refused(run("run", "--appliance", endpoint, "--", "true"), endpoint)


def test_wrong_port() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        endpoint = f"127.0.0.1:{silent.getsockname()[1]}"
        assert_refused(run("run", "--appliance", endpoint, "--", "true"), endpoint)


def test_data_port_for_control(unharmed: Appliance) -> None:
    host, port = unharmed.endpoint.split(":")
    assert_refused(run("run", "--appliance", f"{host}:{int(port) + 1}", "--", "true"))


def test_a_command_that_does_not_exist(unharmed: Appliance) -> None:
    assert_refused(run("run", "--appliance", unharmed.endpoint, "--", "/no/such/program"), "/no/such/program")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Appliance, Path]]:
    """An appliance with TLS and a token file, and the folder of its certificate."""
    folder = tmp_path_factory.mktemp("tls")
    for name in ("server", "other"):
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
             "-days", "1",
             "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", folder / f"{name}.key",
             "-out", folder / f"{name}.pem"],
            check=True, capture_output=True,
        )  # fmt: skip
    (folder / "tokens").write_text("alice:correct-horse-battery-staple\n")
    (folder / "token").write_text("correct-horse-battery-staple\n")
    (folder / "wrong").write_text("wrong\n")
    it = Appliance(
        "--cert", str(folder / "server.pem"), "--key", str(folder / "server.key"), "--tokens", str(folder / "tokens")
    )
    try:
        it.wait_until_ready("--ca", str(folder / "server.pem"), "--token-file", str(folder / "token"))
        yield it, folder
    finally:
        it.stop()


@pytest.mark.parametrize("carrier", ["direct", "grpc"])
def test_tls_and_token_work(guarded: tuple[Appliance, Path], carrier: str) -> None:
    it, folder = guarded
    options = ("--ca", str(folder / "server.pem"), "--token-file", str(folder / "token"))
    done = it.run("vector_add.py", options=options, env={"REMOTEGPU_CARRIER": carrier})
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


def test_wrong_token(guarded: tuple[Appliance, Path]) -> None:
    it, folder = guarded
    ca, wrong = str(folder / "server.pem"), ("--token-file", str(folder / "wrong"))
    assert_refused(run("run", "--appliance", it.endpoint, "--ca", ca, *wrong, "--", "true"), "token")
    assert_refused(run("run", "--appliance", it.endpoint, "--ca", ca, "--", "true"), "token")


def test_bad_certificate(guarded: tuple[Appliance, Path]) -> None:
    it, folder = guarded
    token = ("--token-file", str(folder / "token"))
    assert_refused(
        run("run", "--appliance", it.endpoint, "--ca", str(folder / "other.pem"), *token, "--", "true"), "certificate"
    )
    assert_refused(run("run", "--appliance", it.endpoint, *token, "--", "true"))


# ---- the same mistakes when they only show inside the program: the environment is set by hand


def shares(endpoint: str, lease_id: str = "ab" * 16, secret: str = "cd" * 32, ca: str | None = None) -> dict[str, str]:
    share = {"endpoint": endpoint, "lease_id": lease_id, "lease_secret": secret, "ca": ca, "server_name": None}
    from support.system import DIST

    return {"REMOTEGPU_SHARES": json.dumps([share]), "LD_LIBRARY_PATH": str(DIST / "client")}


def program(env: dict[str, str]) -> tuple[int, str]:
    started = Watch()
    done = subprocess.run(REPORT, capture_output=True, text=True, timeout=30, env=os.environ | env)
    assert started.within(7)
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip().count("\n") == 0 and done.stderr.strip(), done.stderr
    return int(done.stdout), done.stderr


def test_program_without_an_appliance() -> None:
    endpoint = f"127.0.0.1:{free_port()}"
    code, message = program(shares(endpoint))
    assert code != 0 and endpoint in message


def test_program_with_a_silent_endpoint() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        code, _ = program(shares(f"127.0.0.1:{silent.getsockname()[1]}"))
        assert code != 0


def test_a_program_with_an_unknown_lease(unharmed: Appliance) -> None:
    code, message = program(shares(unharmed.endpoint))
    assert code != 0 and "lease" in message


def test_program_with_a_bad_certificate(guarded: tuple[Appliance, Path]) -> None:
    it, folder = guarded
    code, message = program(shares(it.endpoint, ca=str(folder / "other.pem")))
    assert code != 0 and "certificate" in message


@pytest.mark.parametrize("value", ["", "{", "[]", '[{"endpoint": 5}]'])
def test_program_with_a_broken_environment(value: str) -> None:
    from support.system import DIST

    code, message = program({"REMOTEGPU_SHARES": value, "LD_LIBRARY_PATH": str(DIST / "client")})
    assert code != 0 and "REMOTEGPU_SHARES" in message


def test_a_closed_lease_refuses_a_second_use(unharmed: Appliance) -> None:
    """The environment that a program keeps is worth nothing once the lease is closed."""
    first = unharmed.run("printenv", "REMOTEGPU_SHARES")
    code, message = program(
        {"REMOTEGPU_SHARES": first.stdout.strip(), "LD_LIBRARY_PATH": shares("")["LD_LIBRARY_PATH"]}
    )
    assert code != 0 and "lease" in message


def test_version_mismatch_names_both() -> None:
    from remotegpu.rpc import client

    with appliance() as remote:
        answer = client.hello_with_versions(remote.endpoint, wire=999, table_hash=1)
        assert "999" in answer.refusal and "1" in answer.refusal
