"""An appliance that other machines reach: refused without token and TLS; `appliance init` makes both."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.stand_in import StandIn
from support.system import REMOTEGPU, free_port, until

from remotegpu.appliance.secret_files import administrators_folder
from remotegpu.rpc import own_token
from remotegpu.rpc.client import Access


def remotegpu(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    environment = os.environ | (env or {})
    return subprocess.run([REMOTEGPU, *arguments], env=environment, capture_output=True, text=True, timeout=60)


# 192.0.2.1 is nobody's (RFC 5737): nothing listens there, whether the appliance refuses to or cannot.
OUTSIDE = ("appliance", "--no-self-test", "--listen", "192.0.2.1:7070")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("init") / "secrets"
    done = remotegpu("appliance", "init", str(folder), "--host", "127.0.0.1", "--host", "gpu.example")
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_beyond_this_machine_it_wants_token_and_tls(made: tuple[Path, str]) -> None:
    folder, _ = made
    tls = ("--cert", str(folder / "server.pem"), "--key", str(folder / "server.key"))
    tokens = ("--tokens", str(folder / "tokens"))
    for some, lacking in (((), ["--tokens", "--cert"]), (tls, ["--tokens"]), (tokens, ["--cert"])):
        done = remotegpu(*OUTSIDE, *some)
        assert done.returncode == 2, done.stderr
        assert all(name in done.stderr for name in (*lacking, "appliance init", "--insecure")), done.stderr
        assert done.stderr.count("\n") == 1
    enough: list[tuple[str, ...]] = [(*tls, *tokens), ("--insecure",)]
    for options in enough:
        done = remotegpu(*OUTSIDE, *options)
        assert (done.returncode, "cannot listen" in done.stderr) == (69, True), "it tried to"


def test_only_its_owner_reads_what_init_made(made: tuple[Path, str]) -> None:
    folder, _ = made
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    public = {"ca.pem": 0o644, "server.pem": 0o644, "remotegpu-appliance.service": 0o644}
    secret = dict.fromkeys(("server.key", "tokens", "user.token"), 0o600)
    assert modes == public | secret
    administrators = administrators_folder(folder)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in administrators.iterdir()}
    assert modes == {"ca.key": 0o600, "admin.token": 0o600}
    assert {stat.S_IMODE(each.stat().st_mode) for each in (folder, administrators)} == {0o700}
    assert str(administrators) in made[1]


def test_init_leaves_what_is_there_alone(made: tuple[Path, str]) -> None:
    folder, _ = made
    before = (folder / "ca.pem").read_bytes()
    done = remotegpu("appliance", "init", str(folder))
    assert (done.returncode, str(folder) in done.stderr) == (2, True)
    assert (folder / "ca.pem").read_bytes() == before


def test_init_leaves_an_administrator_s_folder_alone(tmp_path: Path) -> None:
    administrators = administrators_folder(tmp_path / "new")
    administrators.mkdir()
    (administrators / "ca.key").write_text("another")
    done = remotegpu("appliance", "init", str(tmp_path / "new"))
    assert (done.returncode, str(administrators) in done.stderr) == (2, True)
    assert (administrators / "ca.key").read_text() == "another"


def test_a_folder_of_the_release_before_works_and_is_named(made: tuple[Path, str], dist: Path, tmp_path: Path) -> None:
    """It has the administrator's files beside the appliance's. The printed command moves them."""
    folder = tmp_path / "secrets of before"
    shutil.copytree(made[0], folder)
    for path in administrators_folder(made[0]).iterdir():
        shutil.copy2(path, folder)
    files = (f"--tokens={folder / 'tokens'}", f"--cert={folder / 'server.pem'}", f"--key={folder / 'server.key'}")
    access = Access((folder / "admin.token").read_text().strip(), folder / "ca.pem")

    def fix(appliance: StandIn) -> str:
        (found,) = [each for each in appliance.client.health().checks if each.name == "administrator's files"]
        assert (found.status == "ok") == (not found.fix)
        return str(found.fix)

    with StandIn(dist, *files, access=access) as appliance:
        command = fix(appliance)
        assert str(folder) in command and command in appliance.log
    subprocess.run(command, shell=True, check=True)
    with StandIn(dist, *files, access=access) as appliance:
        assert fix(appliance) == "" and "administrator's files" not in appliance.log
    assert {path.name for path in administrators_folder(folder).iterdir()} == {"ca.key", "admin.token"}


def commands(printed: str) -> list[list[str]]:
    return [shlex.split(line) for line in printed.splitlines() if line.strip().startswith("remotegpu ")]


@pytest.fixture
def started(made: tuple[Path, str], dist: Path) -> Iterator[str]:
    """The address of the appliance that the first printed command starts."""
    command, endpoint = commands(made[1])[0], f"127.0.0.1:{free_port()}"
    command[command.index("--listen") + 1] = endpoint
    options = ["--backend", "software", "--no-self-test", "--uid-base", "0", "--quiet", "--drain-seconds", "0"]
    process = subprocess.Popen([REMOTEGPU, *command[1:], *options], env={**os.environ, "REMOTEGPU_DIST": str(dist)})
    yield endpoint
    process.terminate()
    process.wait(20)


def test_the_two_printed_commands_work(made: tuple[Path, str], started: str) -> None:
    folder, printed = made
    _, run = commands(printed)
    run[run.index("--appliance") + 1] = started
    # The program of the user; and the stand-in's library is empty.
    command = [*run[1 : run.index("--") + 1], "true"]
    until(lambda: remotegpu("ls", *run[2 : run.index("--")]).returncode == 0, 30, "it answers")
    assert remotegpu(*command).returncode == 0
    admin = administrators_folder(folder) / "admin.token"
    for token, code in ((folder / "user.token", 0), (admin, 0), (folder / "tokens", 2)):
        options = ("--appliance", started, "--ca", str(folder / "ca.pem"), "--token-file", str(token))
        assert remotegpu("smi", *options).returncode == code


def unit_command(text: str) -> list[str]:
    return shlex.split(re.search(r"^ExecStart=(.*)$", text, re.MULTILINE)[1].replace("%%", "%"))  # type: ignore[index]


def test_the_unit_starts_the_same_appliance_and_ends_it(made: tuple[Path, str], dist: Path) -> None:
    """Does what systemd would: runs the command from another folder, and sends SIGTERM."""
    folder, _ = made
    command, endpoint = unit_command((folder / "remotegpu-appliance.service").read_text()), f"127.0.0.1:{free_port()}"
    command = [f"--listen={endpoint}" if each.startswith("--listen=") else each for each in command]
    command += ["--no-self-test", "--uid-base=0", "--quiet"]
    with subprocess.Popen(command, cwd="/", env={**os.environ, "REMOTEGPU_DIST": str(dist)}) as process:
        access = ("--appliance", endpoint, "--ca", str(folder / "ca.pem"), "--token-file", str(folder / "user.token"))
        until(lambda: remotegpu("ls", *access).returncode == 0, 30, "it answers")
        process.terminate()
        assert process.wait(20) == 0


def test_a_program_runs_with_ca_and_token_and_no_other(run: list[str], made: tuple[Path, str], dist: Path) -> None:
    folder, _ = made
    files = (f"--tokens={folder / 'tokens'}", f"--cert={folder / 'server.pem'}", f"--key={folder / 'server.key'}")
    known = Access((folder / "user.token").read_text().strip(), folder / "ca.pem")
    ca, token = ("--ca", str(folder / "ca.pem")), ("--token-file", str(folder / "user.token"))
    with StandIn(dist, *files, access=known) as appliance:
        for options, code, words in (
            ((*ca, *token), 0, ""),
            (ca, 77, "--token-file"),
            ((*ca, "--token-file", "/etc/hostname"), 77, "--token-file"),
            (token, 69, "TLS"),
            ((*ca, *token, "--server-name", "elsewhere"), 69, "elsewhere"),
        ):
            done = appliance.start([*run, *options, "-p", "0.1", "--", "echo", "done"])
            assert (done.returncode, done.stdout) == (code, "" if code else "done\n"), done.stderr
            assert words in done.stderr


def test_systemd_understands_the_unit(made: tuple[Path, str]) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed: it is of the Debian package systemd")
    unit = str(made[0] / "remotegpu-appliance.service")
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, timeout=60)
    assert [line for line in done.stderr.splitlines() if "remotegpu" in line] == []


def test_a_folder_of_any_name(tmp_path: Path) -> None:
    folder = tmp_path / "100 % of GPUs"
    done = remotegpu("appliance", "init", str(folder), "--backend", "cuda")
    assert done.returncode == 0, done.stderr
    command = unit_command((folder / "remotegpu-appliance.service").read_text())
    assert f"--cert={folder / 'server.pem'}" in command
    assert "--backend=cuda" in command


def test_a_token_on_the_command_line_is_warned_about(appliance: StandIn, tmp_path: Path) -> None:
    host, _, port = appliance.endpoint.rpartition(":")
    found = own_token.find(host, int(port))
    assert found is not None
    secret = found[1]
    (tmp_path / "token").write_text(f"{secret}\n")
    shown = appliance.cli("ls", "--token", secret)
    assert (shown.returncode, "--token-file" in shown.stderr) == (0, True)
    assert secret not in shown.stderr and shown.stderr.count("\n") == 1
    assert appliance.cli("ls", "--token-file", str(tmp_path / "token")).stderr == ""
    appliance.environment["REMOTEGPU_TOKEN"] = secret
    try:
        assert appliance.cli("ls").stderr == ""
    finally:
        del appliance.environment["REMOTEGPU_TOKEN"]
