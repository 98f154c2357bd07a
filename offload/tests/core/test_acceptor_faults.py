"""Deaths and ends around offload sessions: the client gets one sentence about it, and nothing is left behind."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from offload_appliance import PATIENCE, lease, offload_appliance, open_session, session
from offload_hostile import hostile_environment, run
from offload_local import LocalAcceptors, local_session
from support.stand_in import StandIn, Tenant
from support.system import until

from remotegpu_offload.client.places import Wish
from remotegpu_offload.client.services import services
from remotegpu_offload.client.session import Session
from remotegpu_offload.code.sources import Main
from remotegpu_offload.config.model import ClassRule, CodeRules, Config, FileRules, FunctionRule, SessionRules
from remotegpu_offload.functions import client
from remotegpu_offload.jupyter import cell
from remotegpu_offload.program import client as program
from remotegpu_offload.wire.errors import LostError
from remotegpu_offload.wire.frames import Service
from remotegpu_offload.wire.peer import Peer
from remotegpu_offload.wire.request import Request


@contextlib.contextmanager
def hostile_appliance(folder: Path, *options: str, alone: bool = False) -> Iterator[StandIn]:
    environment = hostile_environment(folder / "hostile", alone=alone)
    # Where there are no namespaces, another user could not read this Python.
    with offload_appliance(folder, *options, environments=(environment,), uids=not alone) as it:
        yield it


@pytest.fixture(params=[False, True], ids=["namespaces", "alone"])
def appliance(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StandIn]:
    with hostile_appliance(tmp_path, alone=request.param) as it:
        yield it


@pytest.fixture
def tenant(appliance: StandIn) -> Iterator[Tenant]:
    with lease(appliance) as it:
        yield it


def processes() -> dict[int, tuple[int, str]]:
    """All of this machine: their parents and commands. Without those that have ended and wait to be collected."""
    found: dict[int, tuple[int, str]] = {}
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and (command := (folder / "cmdline").read_bytes()):
                parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
                found[int(folder.name)] = (int(parent), command.decode(errors="replace"))
    return found


def descendants(appliance: StandIn) -> dict[int, str]:
    """The processes beneath the appliance, by their command."""
    remote = processes()
    found: dict[int, str] = {}
    todo = {appliance.process.pid}
    while todo:
        todo = {pid for pid, (parent, _) in remote.items() if parent in todo}
        found |= {pid: remote[pid][1] for pid in todo}
    return found


def zygotes(appliance: StandIn) -> dict[int, str]:
    """The environment's processes: its zygote alone where no session lives."""
    return {pid: command for pid, command in descendants(appliance).items() if "zygote.py" in command}


def zygote(appliance: StandIn) -> int:
    remote = processes()
    (found,) = (pid for pid in zygotes(appliance) if remote[pid][0] == appliance.process.pid)
    return found


def ends(peer: Peer) -> list[str]:
    """The reasons that the acceptor gives; filled in as they come."""
    reasons: list[str] = []

    def hear(request: Request) -> None:
        reasons.append(str(request.header.get("reason")))

    peer.serve(Service.SESSION, hear, inline=True)
    return reasons


def sessions_now(appliance: StandIn) -> int:
    return sum(one.sessions for one in appliance.client.inventory().leases)


def waiting_call(peer: Peer) -> tuple[threading.Thread, list[Any]]:
    """Starts a call that sleeps for 10**6 seconds. Returns its thread, and a list that gets its outcome."""
    outcome: list[Any] = []

    def call() -> None:
        try:
            outcome.append(run(peer, "import time; time.sleep(10 ** 6)", timeout=10**6))
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    return thread, outcome


def test_a_killed_acceptor_is_one_sentence_and_leaves_nothing(appliance: StandIn, tenant: Tenant) -> None:
    with session(tenant) as peer:
        run(peer, "open('file', 'w').write('x' * 100000)")
        thread, outcome = waiting_call(peer)
        served = max(pid for pid in zygotes(appliance))
        os.kill(served, signal.SIGKILL)
        thread.join(PATIENCE)
        (error,) = outcome
        assert isinstance(error, LostError)
        assert f"acceptor hostile at {appliance.endpoint}" in str(error)
        assert len(str(error).splitlines()) == 1
        # Every later call says the same at once.
        with pytest.raises(LostError):
            run(peer, "value = 1")
    until(lambda: sessions_now(appliance) == 0, 30, "the session is forgotten")
    until(lambda: len(zygotes(appliance)) == 1, 30, "its processes have ended")
    assert "died (signal 9)" in appliance.log
    # The lease and its environment are as good as before.
    with session(tenant) as peer:
        assert run(peer, "value = 3") == 3


def test_folders_and_groups_end_with_their_session(tmp_path: Path) -> None:
    with hostile_appliance(tmp_path) as it, lease(it) as tenant:
        before = set(Path("/sys/fs/cgroup").glob(f"**/remotegpu-{it.process.pid}-*"))
        assert before == set()
        with session(tenant) as peer:
            assert run(peer, "value = 1") == 1
            during = set(Path("/sys/fs/cgroup").glob(f"**/remotegpu-{it.process.pid}-*"))
            health = {check.name: check.message for check in it.client.health().checks}
            assert bool(during) is ("cgroups (" not in health["environment hostile: isolation"])
        until(lambda: sessions_now(it) == 0, 30, "the session is forgotten")
        assert not set(Path("/sys/fs/cgroup").glob(f"**/remotegpu-{it.process.pid}-*"))


def test_a_killed_zygote_is_started_again(appliance: StandIn, tenant: Tenant, request: pytest.FixtureRequest) -> None:
    alone = "alone" in request.node.name
    with session(tenant) as peer:
        assert run(peer, "value = 1") == 1
        first = zygote(appliance)
        os.kill(first, signal.SIGKILL)
        if alone:
            # Without a keeper a session must not outlive who watches over it.
            assert peer.closed.wait(30)
        else:
            until(lambda: "is being started again" in appliance.log, 30, "the appliance has noticed")
            assert run(peer, "value = 2") == 2
        # A new session waits until the zygote is there.
        with session(tenant) as other:
            assert run(other, "value = 4") == 4
        assert zygote(appliance) != first
    until(lambda: sessions_now(appliance) == 0, 30, "both sessions are forgotten")
    until(lambda: len(zygotes(appliance)) == 1, 30, "their processes have ended")


def test_the_end_of_a_lease_reaches_the_client_with_its_reason(appliance: StandIn) -> None:
    with lease(appliance) as tenant, session(tenant) as peer:
        reasons = ends(peer)
        assert run(peer, "value = 1") == 1
        assert tenant.holding is not None
        tenant.holding.close()
        assert peer.closed.wait(30)
        assert reasons == ["the lease has ended: its holder is gone"]
    until(lambda: len(zygotes(appliance)) == 1, 30, "its processes have ended")


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL], ids=["drained", "killed"])
def test_nothing_outlives_the_appliance(tmp_path: Path, end: signal.Signals) -> None:
    with hostile_appliance(tmp_path) as it:
        tenant = it.lease()
        with session(tenant) as peer:
            reasons = ends(peer)
            folder = Path(run(peer, "import sys; value = [p for p in sys.path if p.endswith('offload/python')][0]"))
            thread, outcome = waiting_call(peer)
            running = descendants(it)
            assert len([command for command in running.values() if "zygote.py" in command]) >= 3
            it.process.send_signal(end)
            thread.join(PATIENCE)
            assert isinstance(outcome[0], LostError)
            assert reasons == (["the lease has ended: the appliance shuts down"] if end == signal.SIGTERM else [])
        it.process.wait(30)
        until(lambda: not [pid for pid in running if Path(f"/proc/{pid}").exists()], 30, "all its processes have ended")
        if end == signal.SIGTERM:
            assert not folder.exists()
        else:
            # An appliance that is killed leaves empty groups; the next one removes them.
            (tmp_path / "next").mkdir()
            with hostile_appliance(tmp_path / "next"):
                pass
        assert not list(Path("/sys/fs/cgroup").glob(f"**/remotegpu-{it.process.pid}-*"))


def test_a_client_that_goes_away_leaves_nothing(appliance: StandIn, tenant: Tenant) -> None:
    with session(tenant) as peer:
        run(peer, "import threading, time; threading.Thread(target=time.sleep, args=(10 ** 6,)).start()")
    until(lambda: sessions_now(appliance) == 0, 30, "the session is forgotten")
    until(lambda: len(zygotes(appliance)) == 1, 30, "its processes have ended")


def test_more_sessions_than_user_ids_come_and_go(tmp_path: Path) -> None:
    """A uid, a folder or a descriptor that is not given back would be missed: the appliance has 256 uids."""
    with hostile_appliance(tmp_path) as it, lease(it) as tenant:

        def descriptors() -> int:
            return len(list(Path(f"/proc/{it.process.pid}/fd").iterdir()))

        with session(tenant) as peer:
            run(peer, "value = 0")
        until(lambda: sessions_now(it) == 0, 30, "the first has ended")
        before = descriptors()
        for count in range(20):
            with session(tenant) as peer:
                assert run(peer, f"value = {count}") == count
        until(lambda: sessions_now(it) == 0, 30, "all have ended")
        until(lambda: descriptors() <= before, 30, f"descriptors are back to {before}")


def test_a_session_that_takes_too_much_memory_ends_alone(tmp_path: Path) -> None:
    with hostile_appliance(tmp_path, "--offload-memory", "200MiB") as it, lease(it) as tenant:
        health = {check.name: check.message for check in it.client.health().checks}
        if "cgroups (" in health["environment hostile: isolation"]:
            pytest.skip("no cgroup can be written here")
        with session(tenant) as greedy, session(tenant) as modest:
            with pytest.raises(LostError):
                run(greedy, "kept = []\nwhile True: kept.append(bytearray(1 << 24))")
            assert run(modest, "value = 1") == 1
        until(lambda: sessions_now(it) == 0, 30, "both are forgotten")


def test_a_session_that_nobody_connects_to_ends(tmp_path: Path) -> None:
    with hostile_appliance(tmp_path) as it, lease(it) as tenant:
        assert not open_session(tenant).refusal
        assert sessions_now(it) == 1
        until(lambda: sessions_now(it) == 0, 40, "it has ended")
        until(lambda: len(zygotes(it)) == 1, 30, "its processes have ended")


class Watched(LocalAcceptors):
    """Also tells how each acceptor ended, as the connector of an appliance does."""

    def __call__(self, wanted: Wish) -> tuple[socket.socket, dict[str, Any]]:
        sock, told = super().__call__(wanted)
        return sock, told | {"exit_code": self.processes[-1].wait}

    def kill(self) -> None:
        """Kills the latest acceptor and waits until it has ended."""
        self.processes[-1].kill()
        self.processes[-1].wait()


USER = """
import os, signal

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def pages():
    import faults_helper
    return faults_helper.VALUE

def read(path):
    with open(path, "rb") as file:
        return len(file.read())

def numbers():
    yield 1
    die()

def calls(back):
    return back()

def adder(n):
    return lambda m: n + m if m else die()

class Tool:
    size = 3
    def __init__(self, dies=False):
        if dies:
            die()
    def work(self):
        die()
    @classmethod
    def made(cls):
        die()
    @property
    def slow(self):
        die()
"""


class Faulty:
    """A user's module under rules in a session whose acceptors can be killed at a moment that a test chooses."""

    def __init__(self, folder: Path, **rules: Any) -> None:
        (folder / "faults_user.py").write_text(USER)
        (folder / "faults_helper.py").write_text("VALUE = 42\n")
        (folder / "data").write_bytes(os.urandom(24 << 20))
        self.file = str(folder / "data")
        self.acceptors = Watched()
        self.config = Config(
            rules=(FunctionRule("faults_user.*"), ClassRule("faults_user.Tool")),
            code=CodeRules(page=("faults_user", "faults_helper", "./")),
            files=FileRules(read=("./data",)),
            session=SessionRules(**rules),
            folder=folder,
            source=folder / "remotegpu.yaml",
        )

    @contextlib.contextmanager
    def session(self, **options: Any) -> Iterator[Session]:
        with local_session(self.config, connector=self.acceptors, **options) as session:
            yield session

    def module(self, session: Session) -> Any:
        module = importlib.import_module("faults_user")
        client.install(module, self.config, session)
        return module

    def kill_when(self, session: Session, service: Service, op: str) -> list[dict[str, Any]]:
        """The acceptor is killed while the program is about to answer this request of it, once; what it asked."""
        asked: list[dict[str, Any]] = []
        original = session.peer._handlers[service][0]

        def killing(request: Request) -> Any:
            if request.header.get("op") == op and not asked:
                asked.append(request.header)
                self.acceptors.kill()
            return original(request)

        session.peer.serve(service, killing)
        return asked


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("faults_user", "faults_helper"):
        sys.modules.pop(name, None)


def in_a_cell(_module: Any, session: Session) -> None:
    # As the magic `%%offload` does it.
    client.wrap(cell.run, FunctionRule("remotegpu_offload.jupyter.cell.run"), session)(
        "import os\nos.kill(os.getpid(), 9)", "<cell 1>", {}, {}, ()
    )


# What a program does when its acceptor dies, and how the error names it.
CALLS: dict[str, tuple[Callable[[Any, Session], object], str]] = {
    "a function": (lambda user, _: user.die(1), "in the call of faults_user.die"),
    "a constructor": (lambda user, _: user.Tool(True), "in the call of faults_user.Tool"),
    "a method": (lambda user, _: user.Tool().work(), "in the call of faults_user.Tool.work"),
    "a class method": (lambda user, _: user.Tool.made(), "in the call of faults_user.Tool.made"),
    "a property": (lambda user, _: user.Tool().slow, "in the use of faults_user.Tool.slow"),
    "a generator": (lambda user, _: list(user.numbers()), "in the next values of <"),
    "a callback": (lambda user, _: user.calls(lambda: user.die()), "in the call of faults_user.calls"),
    "a function that was returned": (lambda user, _: user.adder(1)(0), "in call of <function <lambda> of the other"),
    "a function by value": (
        lambda _, session: client.wrap(lambda: os.kill(os.getpid(), 9), FunctionRule("x.y"), session)(),
        r"in the call of test_acceptor_faults\.<lambda>",
    ),
    "a cell": (in_a_cell, "in a cell of the notebook"),
}


@pytest.mark.parametrize("what", CALLS)
def test_the_error_of_a_killed_acceptor_names_the_call(folder: Path, what: str) -> None:
    call, named = CALLS[what]
    faulty = Faulty(folder)
    with faulty.session() as session:
        user = faulty.module(session)
        with pytest.raises(LostError) as lost:
            call(user, session)
        said = str(lost.value)
        assert re.search(rf"acceptor local0 of this test is gone \(its process died by SIGKILL.*\[({named}).*\]$", said)
        assert said.count("[in ") == 1 and len(said.splitlines()) == 1
        # What comes afterwards is named too, although it is not even sent.
        with pytest.raises(LostError, match=r"faults_user\.read\b"):
            user.read(faulty.file)


SERVED: dict[str, tuple[Service, str, Callable[[Any, str], object], str, int]] = {
    "a page of code": (Service.CODE, "page", lambda user, _: user.pages(), "pages", 42),
    "a piece of a file": (Service.FILES, "read", lambda user, path: user.read(path), "read", 24 << 20),
}


@pytest.mark.parametrize("what", SERVED)
@pytest.mark.parametrize("resumes", [False, True], ids=["fails", "resumes"])
def test_an_acceptor_killed_while_it_is_served(folder: Path, what: str, resumes: bool) -> None:
    service, op, call, name, value = SERVED[what]
    faulty = Faulty(folder, **({"resume_seconds": 60, "snapshot_seconds": 3600} if resumes else {}))
    with faulty.session() as session:
        user = faulty.module(session)
        asked = faulty.kill_when(session, service, op)
        with pytest.raises(LostError, match=rf"faults_user\.{name}\b"):
            call(user, faulty.file)
        assert len(asked) == 1, "it died in the middle of the call"
        if resumes:
            # The call may have done half of its work, so it is the program that says whether to do it again.
            assert call(user, faulty.file) == value
            assert session.moves == 1 and len(faulty.acceptors.processes) == 2
        else:
            with pytest.raises(LostError, match=rf"faults_user\.{name}\b"):
                call(user, faulty.file)


@pytest.mark.parametrize("what", SERVED)
def test_a_whole_program_whose_acceptor_is_killed_while_it_is_served(
    folder: Path, what: str, capfd: pytest.CaptureFixture[str]
) -> None:
    service, op, *_ = SERVED[what]
    faulty = Faulty(folder)
    script = folder / "main.py"
    script.write_text(f"import faults_helper\nprint(len(open({faulty.file!r}, 'rb').read()))\n")
    offered = services(faulty.config, main=Main(str(script)), program=True)
    with faulty.session(offered=offered) as session:
        asked = faulty.kill_when(session, service, op)
        assert program.run(session, program.Target("script", str(script), (str(script),))) == -signal.SIGKILL
    assert len(asked) == 1
    out, error = capfd.readouterr()
    assert "24" not in out
    assert "remotegpu: acceptor local0 of this test: its process died by SIGKILL" in error
