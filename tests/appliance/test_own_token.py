"""An appliance without --tokens serves the user who started it, and no other one of the machine."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.stand_in import StandIn
from support.system import REMOTEGPU, free_port, until

from remotegpu.api.failures import ApplianceError, Failure
from remotegpu.api.quantities import Ask
from remotegpu.paths import find_dist
from remotegpu.rpc import own_token, pb
from remotegpu.rpc.client import Access, ApplianceClient, parse_endpoint

STRANGER = 65534
ASK = Ask(milli_per_gpu=250)
CALLS: dict[str, Callable[[ApplianceClient], object]] = {
    "inventory": lambda client: client.inventory(),
    "drain": lambda client: client.drain(60),
    "invite": lambda client: client.invite_lease(),
    "open": lambda client: _first(client.open_lease(ASK, "x", wait=False)),
    "suspend": lambda client: _first(client.suspend_lease("0" * 32)),
    "resume": lambda client: _first(client.resume_lease("0" * 32)),
    "resize": lambda client: client.resize_lease("0" * 32, ASK),
    "move": lambda client: _first(client.move_lease("0" * 32, client, "0" * 32)),
}
# The files that another user's program finds. Runs as that user: the tests' own may be root, whom no mode stops.
LOOK = """
import os, sys
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
for path in sys.argv[1:]:
    try:
        open(path).read()
    except PermissionError:
        print("refused")
"""


def _first(events: contextlib.AbstractContextManager[Iterator[object]]) -> object:
    with events as told:
        return next(told)


@pytest.fixture(scope="module")
def own(dist: Path) -> Iterator[StandIn]:
    with StandIn(dist) as it:
        yield it


def kept(appliance: StandIn) -> Path:
    return own_token.make().folder / appliance.endpoint


@pytest.mark.parametrize("name", CALLS)
def test_who_has_not_the_users_token_may_do_nothing(own: StandIn, name: str) -> None:
    for token in ("", "another"):
        stranger = ApplianceClient(parse_endpoint(own.endpoint), Access(token), 20)
        with contextlib.closing(stranger), pytest.raises(ApplianceError) as refused:
            CALLS[name](stranger)
        assert refused.value.failure is Failure.DENIED
        assert "token" in str(refused.value)


def test_the_refusal_names_the_place_and_the_option(own: StandIn) -> None:
    stranger = ApplianceClient(parse_endpoint(own.endpoint), Access(""), 20)
    with contextlib.closing(stranger), pytest.raises(ApplianceError) as refused:
        stranger.inventory()
    for word in (str(kept(own).parent), "--token-file"):
        assert word in str(refused.value)


def test_its_user_needs_no_option(own: StandIn) -> None:
    host, _, port = own.endpoint.rpartition(":")
    for name in (host, "localhost", "127.0.0.2"):
        # The last one is an address on which nothing listens.
        assert own_token.find(name, int(port)) is not None, name
    assert own_token.find("elsewhere.example", int(port)) is None
    assert own.cli("ls").returncode == 0
    listed = own.start([REMOTEGPU, "ls", "--appliance", f"localhost:{port}"])
    assert listed.returncode == 0, listed.stderr


def test_localhost_is_the_address_that_the_appliance_listens_on(own: StandIn) -> None:
    """Somebody else may listen on the other one, and is not to be shown the token."""
    port = int(own.endpoint.rpartition(":")[2])
    with contextlib.closing(ApplianceClient(parse_endpoint(f"localhost:{port}"), Access(), 20)) as client:
        assert str(client.endpoint) == own.endpoint


def test_the_file_is_its_users_alone(own: StandIn) -> None:
    for path, mode in ((kept(own), 0o600), (kept(own).parent, 0o700)):
        status = path.stat()
        assert (stat.S_IMODE(status.st_mode), status.st_uid) == (mode, os.geteuid())


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's process is made by root")
def test_another_user_of_the_machine_cannot_read_it(own: StandIn) -> None:
    done = subprocess.run([sys.executable, "-c", LOOK, str(kept(own))], capture_output=True, text=True, timeout=20)
    assert done.stdout.split() == ["refused"], done.stderr


def test_it_goes_with_the_appliance_and_outlives_a_handover(dist: Path) -> None:
    with StandIn(dist) as it:
        path, before = kept(it), kept(it).read_text()
        it.process.send_signal(signal.SIGHUP)
        until(lambda: "goes on as" in it.log, 60, "it starts anew")
        until(lambda: it.cli("ls").returncode == 0, 20, "it answers")
        assert path.read_text() == before
        again = it.client.inventory()
        assert isinstance(again, pb.InventoryReply)
    assert not path.exists()


def test_a_folder_that_others_may_open_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = tmp_path / "remotegpu"
    folder.mkdir(0o700)
    assert own_token.make().folder == folder
    (folder / "127.0.0.1:9").write_text("planted")
    assert own_token.find("127.0.0.1", 9) == ("127.0.0.1", "planted")
    folder.chmod(0o755)
    assert own_token.make().folder != folder
    assert own_token.find("127.0.0.1", 9) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's folder is made by root")
def test_a_folder_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = tmp_path / "remotegpu"
    folder.mkdir(0o700)
    (folder / "127.0.0.1:9").write_text("planted")
    os.chown(folder, STRANGER, STRANGER)
    assert own_token.find("127.0.0.1", 9) is None
    assert own_token.make().folder != folder


def test_the_launcher_without_python_finds_it_too(own: StandIn) -> None:
    launcher = str(find_dist().program("remotegpu-run"))
    port = own.endpoint.rpartition(":")[2]
    for endpoint in (own.endpoint, f"localhost:{port}"):
        done = own.start([launcher, "--appliance", endpoint, "-p", "0.25", "--", "true"])
        assert done.returncode == 0, done.stderr
        refused = subprocess.run(
            [launcher, "--appliance", endpoint, "-p", "0.25", "--", "true"],
            env={**own.environment, "REMOTEGPU_TOKEN": "another"},
            capture_output=True,
            text=True,
            timeout=20,
        )
        assert refused.returncode != 0
        assert "token" in refused.stderr


def test_a_token_for_others_does_not_hinder_an_appliance_of_ones_own() -> None:
    """One appliance that ends with the command: the environment's token is for those that are named."""
    environment = {**os.environ, "REMOTEGPU_TOKEN": "another"}
    done = subprocess.run(
        [REMOTEGPU, "run", "-p", "0.25", "--", "true"], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_anybody_is_let_in_only_when_it_is_said(dist: Path) -> None:
    with StandIn(dist, "--anybody") as it:
        stranger = ApplianceClient(parse_endpoint(it.endpoint), Access(""), 20)
        with contextlib.closing(stranger):
            assert stranger.inventory().gpus
        assert not kept(it).exists()


def test_anybody_and_tokens_are_not_for_one_appliance(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("a:b")
    command = [REMOTEGPU, "appliance", "--listen", f"127.0.0.1:{free_port()}", "--anybody", "--tokens", str(tokens)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert "give one of them" in done.stderr
