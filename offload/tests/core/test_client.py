"""A program's session: greeting, moving while threads call, resuming, forks, and its control from outside."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from offload_local import LocalAcceptors, local_session
from support.system import until

from remotegpu_offload.client import control
from remotegpu_offload.client.session import Session, current, opened, use
from remotegpu_offload.config.model import Config, EnvRules, SessionRules
from remotegpu_offload.wire import LostError, Message, OffloadError, Peer, RemoteFailure, Request, Service

TOY = str(Path(__file__).parents[1] / "support" / "offload_toy.py")


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runtime").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))


@pytest.fixture
def acceptors() -> LocalAcceptors:
    return LocalAcceptors(program=(TOY,))


@contextlib.contextmanager
def toy(acceptors: LocalAcceptors, **rules: Any) -> Iterator[Session]:
    with local_session(Config(session=SessionRules(**rules)), connector=acceptors, offered={}) as session:
        yield session


class Numbers:
    """The part that moves the toy's numbers."""

    name = "numbers"

    def __init__(self, session: Session) -> None:
        self.session = session
        self.loads = 0
        self.lock = threading.RLock()
        self.held = 0
        self.number = 0
        session.register(self)

    def save(self, peer: Peer) -> object:
        return peer.request(Service.APP, {"op": "save"}).header

    def load(self, peer: Peer, state: object) -> None:
        assert isinstance(state, dict)
        peer.request(Service.APP, {"op": "load", **state})
        self.loads += 1

    def holding(self) -> contextlib.AbstractContextManager[object]:
        self.held += 1
        return self.lock

    def add(self, key: str, n: int = 1) -> tuple[int, int]:
        answer = self.session.peer.request(Service.APP, {"op": "add", "key": key, "n": n}).header
        return answer["total"], answer["pid"]

    def numbered(self) -> None:
        with self.lock:
            number, self.number = self.number, self.number + 1
            self.session.peer.request(Service.APP, {"op": "numbered", "number": number})


def test_a_session_greets_once_and_is_that_of_the_process(acceptors: LocalAcceptors) -> None:
    config = Config(env=EnvRules(("TOY_*",)), session=SessionRules(backends=("cpu",), environment="mine"))
    os.environ["TOY_SEEN"] = "yes"
    try:
        with local_session(config, connector=acceptors, offered={}) as session:
            assert current() is session is opened()
            assert acceptors.wishes[0].backends == ("cpu",) and acceptors.wishes[0].environment == "mine"
            greeting = session.peer.request(Service.APP, {"op": "greeting"}).header
            assert greeting["env"] == {"TOY_SEEN": "yes"}
            assert (greeting["cwd"], greeting["argv"]) == (str(Path.cwd()), sys.argv)
            assert session.environment.python == ".".join(map(str, sys.version_info[:3]))
            counters = session.stats()["counters"]
            assert counters["by_service"] == {"SESSION": 2, "APP": 1}
            other = Session.open(config, connector=acceptors, offered={})
            with pytest.raises(OffloadError):
                use(other)
            assert current() is session
            other.close()
            other.close()
    finally:
        del os.environ["TOY_SEEN"]
    assert opened() is None
    assert [process.returncode for process in acceptors.processes] == [0, 0]


def test_a_session_moves_while_threads_call(acceptors: LocalAcceptors) -> None:
    with toy(acceptors) as session:
        numbers = Numbers(session)
        session.serve(Service.APP, lambda _: Message({"back": threading.get_ident()}))
        stop = threading.Event()
        pids: set[int] = set()

        def work(which: int) -> int:
            count = 0
            while not stop.is_set():
                count += 1
                total, pid = numbers.add(f"own {which}")
                assert total == count
                pids.add(pid)
                numbers.add("shared")
                numbers.numbered()
                back = session.peer.request(Service.APP, {"op": "call back"}).header["back"]
                assert back == threading.get_ident()
            return count

        with ThreadPoolExecutor(4) as pool:
            working = [pool.submit(work, which) for which in range(4)]
            try:
                for move in range(1, 4):
                    until(lambda move=move: len(pids) == move, 60, "calls ran in each place")  # type: ignore[misc]
                    session.switch(environment=f"place {move}")
                until(lambda: len(pids) == 4, 60, "calls ran in the last place")
            finally:
                stop.set()
            counts = [future.result(60) for future in working]
        assert numbers.add("shared", 0)[0] == sum(counts) == numbers.number
        assert [numbers.add(f"own {which}", 0)[0] for which in range(4)] == counts
        assert [wish.environment for wish in acceptors.wishes] == ["", "place 1", "place 2", "place 3"]
        assert numbers.loads == session.moves == 3
        # The counters are those of all connections together, and each acceptor before the last has ended.
        assert session.counters()["by_service"]["SESSION"] == 4
        assert session.counters()["round_trips"] >= 4 * sum(counts)
        for process in acceptors.processes[:-1]:
            assert process.wait(60) == 0
        assert acceptors.processes[-1].poll() is None


def test_a_move_that_fails_leaves_everything_as_it_was(acceptors: LocalAcceptors) -> None:
    with toy(acceptors) as session:
        numbers = Numbers(session)
        _, pid = numbers.add("a", 5)
        acceptors.environ["TOY_FULL"] = "1"
        with pytest.raises(RemoteFailure) as failed:
            session.switch(backend="rocm")
        assert failed.value.details["type"] == "MemoryError"
        assert acceptors.wishes[-1].backends == ("rocm",)
        assert acceptors.processes[-1].wait(60) == 0
        assert numbers.add("a") == (6, pid)
        broken = session.connector
        unreachable = OffloadError("no share has rocm: a:1 has x (cpu)")
        session.connector = lambda wish: (_ for _ in ()).throw(unreachable)
        with pytest.raises(OffloadError) as refused:
            session.switch(backend="rocm")
        assert refused.value is unreachable
        session.connector = broken
        del acceptors.environ["TOY_FULL"]
        assert numbers.add("a") == (7, pid)
        session.switch(backend="cpu")
        total, moved = numbers.add("a")
        assert total == 8 and moved != pid


def test_a_move_waits_for_calls_and_gives_up_in_time(acceptors: LocalAcceptors) -> None:
    with toy(acceptors) as session:
        numbers = Numbers(session)
        running, release = threading.Event(), threading.Event()

        def called_back(request: Request) -> None:
            running.set()
            assert release.wait(60)

        session.serve(Service.APP, called_back)
        with ThreadPoolExecutor(2) as pool:
            call = pool.submit(session.peer.request, Service.APP, {"op": "call back"})
            assert running.wait(60)
            with pytest.raises(TimeoutError):
                session.switch(timeout=0.3)
            numbers.add("meanwhile")
            tries = numbers.held
            move = pool.submit(session.switch)
            # It holds the parts at each try to begin: the second one comes after a first that was in vain.
            until(lambda: numbers.held > tries + 1, 60, "the move waits")
            assert not move.done()
            release.set()
            move.result(60)
            assert call.done()
            call.result()
        assert numbers.add("meanwhile")[0] == 2


def test_a_call_does_not_move_the_session_that_executes_it(acceptors: LocalAcceptors) -> None:
    with toy(acceptors) as session:

        def move(request: Request) -> Message:
            session.switch()
            return Message({})

        session.serve(Service.APP, move)
        with pytest.raises(RemoteFailure) as failed:
            session.peer.request(Service.APP, {"op": "call back"})
        assert failed.value.details["type"] == "RemoteFailure"
        assert session.moves == 0
        session.switch()


def kill(acceptors: LocalAcceptors, session: Session) -> None:
    peer = session._peer
    acceptors.processes[-1].kill()
    assert peer.closed.wait(60)


def test_a_lost_acceptor_is_resumed_from_what_was_kept(acceptors: LocalAcceptors) -> None:
    with toy(acceptors, resume_seconds=60, snapshot_seconds=3600) as session:
        numbers = Numbers(session)
        numbers.add("a", 5)
        session.snapshot()
        kill(acceptors, session)
        with ThreadPoolExecutor(4) as pool:
            totals = {total for total, _ in pool.map(lambda _: numbers.add("a"), range(4))}
        assert totals == {6, 7, 8, 9}
        assert (numbers.loads, session.moves) == (1, 1)
        # Where it moved to on purpose is kept as well.
        session.switch()
        kill(acceptors, session)
        assert numbers.add("a")[0] == 10
        assert session.stats()["moves"] == 3


def test_what_cannot_be_resumed_says_why(acceptors: LocalAcceptors) -> None:
    with toy(acceptors, resume_seconds=60) as session:
        numbers = Numbers(session)
        numbers.add("a")
        kill(acceptors, session)
        with pytest.raises(LostError, match=r"\bnumbers\b.*\bsnapshots\b"):
            numbers.add("a")
    with toy(acceptors) as session:
        kill(acceptors, session)
        with pytest.raises(LostError, match=r"\blocal1\b"):
            session.peer.request(Service.APP, {"op": "save"})
    with toy(acceptors, resume_seconds=1) as session:
        kill(acceptors, session)

        def none(wish: object) -> Any:
            raise OffloadError("refused: a:1")

        session.connector = none
        with pytest.raises(LostError, match="refused: a:1"):
            session.peer.request(Service.APP, {"op": "save"})
        assert session.stats()["acceptor"] is None


def test_the_appliance_says_why_it_ends_a_session(acceptors: LocalAcceptors) -> None:
    with toy(acceptors) as session, pytest.raises(LostError, match="the appliance is shutting down"):
        session.peer.request(Service.APP, {"op": "end"})


def test_an_acceptor_that_dies_before_the_greeting_is_an_error_and_nothing_stays(acceptors: LocalAcceptors) -> None:
    acceptors.program = ("-c", "")
    before = threading.active_count()
    with pytest.raises(LostError, match=r"\blocal0\b"), toy(acceptors):
        pass
    assert acceptors.processes[0].wait(60) == 2 or acceptors.processes[0].returncode == 0
    until(lambda: threading.active_count() == before, 60, "its threads end")


def test_a_forked_child_has_no_session_and_its_parent_keeps_it(acceptors: LocalAcceptors) -> None:
    with toy(acceptors) as session:
        numbers = Numbers(session)
        numbers.add("a")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with contextlib.suppress(LostError):
                    session.peer.request(Service.APP, {"op": "save"})
                    os._exit(2)
                code = 0 if opened() is None else 3
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert numbers.add("a")[0] == 2
        assert [one["id"] for one in control.sessions()] == [session.id]


def test_a_session_is_controlled_from_another_process(acceptors: LocalAcceptors) -> None:
    with toy(acceptors) as session:
        numbers = Numbers(session)
        _, pid = numbers.add("a", 3)
        code = (
            "import json, sys; from remotegpu_offload.client import control\n"
            "one, = control.sessions(); assert one['id'] == sys.argv[1] and not one['lost'], one\n"
            "assert control.ask(sys.argv[1], op='stats')['counters']['by_service']['APP'] == 1\n"
            "moved = control.ask(sys.argv[1], op='switch', environment='elsewhere')\n"
            "assert moved['environment']['name'] == 'toy' and moved['moves'] == 1, moved\n"
            "try: control.ask(sys.argv[1], op='open')\n"
            "except Exception as error: print(error)\n"
        )
        done = subprocess.run([sys.executable, "-c", code, session.id], check=True, capture_output=True, text=True)
        assert "the session knows describe, stats and switch" in done.stdout
        assert acceptors.wishes[-1].environment == "elsewhere"
        total, moved = numbers.add("a")
        assert total == 4 and moved != pid
        path = session._control.path
        assert path is not None and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert not path.exists()
    assert list(control.sessions()) == []


def test_sockets_of_dead_programs_are_not_listed_as_sessions(acceptors: LocalAcceptors) -> None:
    with toy(acceptors) as session:
        path = session._control.path
        assert path is not None
        path.with_name("00000000.sock").touch()
        found = list(control.sessions())
        assert [one["id"] for one in found] == [session.id]
        assert not path.with_name("00000000.sock").exists()
        for name in ("00000000", "../../etc", session.id + "0"):
            with pytest.raises(control.UnknownSessionError):
                control.ask(name, op="describe")


def test_nothing_listens_where_somebody_else_could_reach_into(tmp_path: Path, acceptors: LocalAcceptors) -> None:
    (tmp_path / "runtime" / "remotegpu").mkdir(mode=0o777)
    (tmp_path / "runtime" / "remotegpu").chmod(0o777)
    with toy(acceptors) as session:
        assert session._control.path is None
        with pytest.raises(OffloadError, match=str(tmp_path / "runtime")):
            list(control.sessions())


def test_the_end_of_the_program_ends_the_acceptor(tmp_path: Path) -> None:
    """Also where nobody closes the session: it ends with the interpreter, or with the process."""
    code = (
        "import os, signal, sys; sys.path.insert(0, sys.argv[1])\n"
        "from offload_local import LocalAcceptors\n"
        "from remotegpu_offload.client.session import Session\n"
        "from remotegpu_offload.config.model import Config\n"
        "acceptors = LocalAcceptors(program=(sys.argv[2],))\n"
        "session = Session.open(Config(), connector=acceptors, offered={})\n"
        "print(acceptors.processes[0].pid, flush=True)\n"
        "acceptors.processes.clear()\n"
        "if sys.argv[3] == 'kill': os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    for how, expected in (("exit", 0), ("kill", -signal.SIGKILL)):
        arguments = [sys.executable, "-W", "ignore", "-c", code, str(Path(TOY).parent), TOY, how]
        done = subprocess.run(arguments, check=False, capture_output=True, text=True)
        assert done.returncode == expected, done.stderr
        folder = Path(f"/proc/{int(done.stdout)}/cwd")
        until(lambda folder=folder: not folder.exists(), 60, "the acceptor ends")  # type: ignore[misc]
