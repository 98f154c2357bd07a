"""Every mistake: one line on stderr that names cause and next step, an exit code of its kind, at once."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from support.stand_in import StandIn
from support.system import REMOTEGPU, REMOTEGPU_RUN, Watch, free_port

from remotegpu.rpc import WIRE_VERSION, pb, pb_grpc

USAGE, UNAVAILABLE, BUSY, NOT_EXECUTABLE, NOT_FOUND = 2, 69, 75, 126, 127


# A run that Python watches.
WATCHED = [REMOTEGPU, "run", "--report-file", "/dev/null"]


@pytest.fixture
def silent() -> Iterator[str]:
    """A port that accepts connections and says nothing."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def refused(appliance: StandIn, *arguments: str) -> tuple[int, str]:
    return refused_start(appliance, [REMOTEGPU, *arguments])


def refused_start(appliance: StandIn, command: list[str]) -> tuple[int, str]:
    started = Watch()
    done = appliance.start(command)
    assert started.within(5)
    assert done.stdout == ""
    assert done.stderr.startswith("remotegpu: ")
    assert done.stderr.count("\n") == 1, done.stderr
    return done.returncode, done.stderr


@pytest.mark.parametrize("fraction", ["0", "-1", "1.5", "abc", "nan", "1e-9", ""])
def test_fractions(run: list[str], appliance: StandIn, fraction: str) -> None:
    code, message = refused_start(appliance, [*run, "-p", fraction, "--", "true"])
    assert code == USAGE
    assert fraction in message
    assert "0.25" in message


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-m", "lots", "--", "true"], "'lots'"),
        (["-m", "-5", "--", "true"], "'-5'"),
        (["-m", "4GiB", "-p", "0.5", "--", "true"], "-p and -m"),
        (["-n", "2", "-p", "2", "--", "true"], "-n 2"),
        (["-n", "0", "--", "true"], "greater than or equal to 1"),
        ([], "COMMAND"),
        (["--no-such-option", "--", "true"], "--no-such-option"),
        (["-a", "nonsense:port", "--", "true"], "'nonsense:port'"),
        (["--ca", "/etc/hostname", "--", "true"], "/etc/hostname"),
        (["--token-file", "/none", "--", "true"], "/none"),
        (["--compute", "0.5", "--", "true"], "--compute-mode turns"),
    ],
)
def test_usage_of_run(run: list[str], appliance: StandIn, arguments: list[str], words: str) -> None:
    code, message = refused_start(appliance, [*run, *arguments])
    assert code == USAGE
    assert words in message


@pytest.mark.parametrize(
    "options",
    [
        *(["-p", text] for text in ("-1", "1.5", "abc", "1e-9", "1025")),
        *(["-m", text] for text in ("lots", "1e30")),
        ["-m", "4GiB", "-p", "0.5"],
        ["-n", "2", "-p", "2"],
        ["-n", "3"],
        ["-a", "nonsense:port"],
        ["--ca", "/none"],
        ["--token-file", "/none"],
        ["--token-file", "/etc/os-release"],
        ["--compute", "0.5"],
        ["--compute", "2"],
        ["--compute", "0.5", "--compute-limit", "0.2"],
        ["--managed-memory", "lots"],
        ["-p", "0.1", "no-such-command"],
        ["-p", "0.1", "/etc"],
    ],
    ids=" ".join,
)
def test_both_programs_say_the_same(appliance: StandIn, options: list[str]) -> None:
    one, other = (refused_start(appliance, [*run, *options, "true"]) for run in (WATCHED, [REMOTEGPU_RUN]))
    assert one == other


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--report"], "--report"),
        (["--trace", "file"], "--trace"),
        (["-a", ""], "-a"),
    ],
)
def test_what_only_the_python_package_has(appliance: StandIn, options: list[str], words: str) -> None:
    code, message = refused_start(appliance, [REMOTEGPU_RUN, *options, "--", "true"])
    assert code == USAGE
    assert words in message and "`remotegpu run`" in message


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["walk"], "walk"),
        (["ls", "-a", ":7070"], "':7070'"),
        (["ls", "--token-file", "/none"], "/none"),
        (["bench", "-a", "one:1,two:2"], "--appliance"),
        (["appliance", "--move-to", "any"], "--tokens"),
        (["appliance", "--tokens", "/none", "--move-to", "nowhere"], "'nowhere' is neither HOST:PORT nor any"),
    ],
)
def test_usage(appliance: StandIn, arguments: list[str], words: str) -> None:
    code, message = refused(appliance, *arguments)
    assert code == USAGE
    assert words in message


@pytest.mark.parametrize("command", ["ls", "smi"])
def test_an_address_without_an_appliance(appliance: StandIn, command: str) -> None:
    endpoint = f"127.0.0.1:{free_port()}"
    code, message = refused(appliance, command, "-a", endpoint)
    assert code == UNAVAILABLE
    assert endpoint in message
    assert "remotegpu appliance --listen" in message


def test_a_run_at_an_address_without_an_appliance(run: list[str], appliance: StandIn) -> None:
    endpoint = f"127.0.0.1:{free_port()}"
    code, message = refused_start(appliance, [*run, "-a", endpoint, "--", "true"])
    assert code == UNAVAILABLE
    assert endpoint in message
    assert "`remotegpu appliance" in message


def test_no_such_host(appliance: StandIn) -> None:
    code, message = refused(appliance, "ls", "-a", "no-such-host.invalid:7070")
    assert code == UNAVAILABLE
    assert "no-such-host.invalid:7070" in message


def test_something_else_listens(run: list[str], appliance: StandIn, silent: str) -> None:
    code, message = refused_start(appliance, [*run, "-a", silent, "--", "true"])
    assert code == UNAVAILABLE
    assert silent in message


def test_the_data_port_instead_of_the_control_port(run: list[str], appliance: StandIn) -> None:
    port = appliance.client.hello().data_port
    code, message = refused_start(appliance, [*run, "-a", f"127.0.0.1:{port}", "--", "true"])
    assert code == UNAVAILABLE
    assert f"127.0.0.1:{port}" in message


def test_tls_against_an_appliance_without_tls(appliance: StandIn) -> None:
    code, message = refused(appliance, "ls", "--ca", "/etc/hostname")
    assert code == USAGE
    assert "/etc/hostname" in message


@pytest.mark.parametrize("count", ["3", "1000"])
def test_a_request_for_more_than_the_appliance_has(run: list[str], appliance: StandIn, count: str) -> None:
    code, message = refused_start(appliance, [*run, "-n", count, "--", "true"])
    assert code == BUSY
    assert re.search(rf"\b{count} GPUs\b.*\b2 GPUs\b", message)


def test_commands_that_cannot_run(run: list[str], appliance: StandIn, tmp_path: Path) -> None:
    for where in (run, [REMOTEGPU, "run", "--native"]):
        code, message = refused_start(appliance, [*where, "-p", "0.1", "--", "no-such-command"])
        assert code == NOT_FOUND
        assert "'no-such-command'" in message
    lost = tmp_path / "lost"
    lost.write_text("#!/no/such/interpreter\n")
    lost.chmod(0o755)
    code, message = refused_start(appliance, [*run, "-p", "0.1", "--", str(lost)])
    assert code == NOT_EXECUTABLE
    assert str(lost) in message
    assert appliance.leased == 0


class OtherVersion(pb_grpc.ControlServicer):
    """An appliance that does not take us."""

    def Hello(self, request: pb.HelloRequest, context: object) -> pb.HelloReply:  # noqa: N802
        return pb.HelloReply(refusal=f"versions do not fit: here 999, there {request.versions.wire}")


def test_another_version(run: list[str], appliance: StandIn) -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    pb_grpc.add_ControlServicer_to_server(OtherVersion(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        code, message = refused_start(appliance, [*run, "-a", f"127.0.0.1:{port}", "--", "true"])
    finally:
        server.stop(None).wait()
    assert code == 76
    assert f"here 999, there {WIRE_VERSION}" in message


def test_nothing_built(appliance: StandIn) -> None:
    appliance.environment["REMOTEGPU_DIST"], kept = "/nowhere", appliance.environment["REMOTEGPU_DIST"]
    try:
        code, message = refused(appliance, "run", "--native", "--", "true")
        assert code == 70
        assert "/nowhere/bin/remotegpu-run" in message and "`make build`" in message
    finally:
        appliance.environment["REMOTEGPU_DIST"] = kept


def test_no_appliance_named(appliance: StandIn) -> None:
    code, message = refused(appliance, "ls", "-a", "")
    assert code == USAGE
    assert "REMOTEGPU_APPLIANCE" in message
