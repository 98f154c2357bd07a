"""A session's greeting, what a program sees of its process, cancelling, and the end; without an appliance."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remotegpu_offload.acceptor import versions
from remotegpu_offload.wire.errors import RemoteFailure
from remotegpu_offload.wire.frames import Message, Service
from remotegpu_offload.wire.peer import Peer
from remotegpu_offload.wire.request import Request

_PATIENCE = 60.0
# A feature as the session attaches them: it runs what the test sends.
_ACCEPTOR = """
import importlib, socket, sys, types
session = importlib.import_module("remotegpu_offload.acceptor.session")
feature = types.ModuleType("feature")
def attach(it):
    def run(request):
        space = {"session": it, "request": request}
        exec(request.header["code"], space)
        return session.Message({"value": space.get("value")})
    it.peer.serve(session.Service.APP, run)
feature.attach = attach
feature.__spec__ = importlib.machinery.ModuleSpec("feature", None)
sys.modules["feature"] = feature
session.FEATURES = (("feature", ""), ("feature_without_its_package", "no_such_package"))
session.main(socket.socket(fileno=int(sys.argv[1])), "tried")
"""


@contextlib.contextmanager
def acceptor(*command: str) -> Iterator[tuple[Peer, subprocess.Popen[bytes]]]:
    ours, theirs = socket.socketpair()
    given = command or ("-c", _ACCEPTOR, str(theirs.fileno()))
    arguments = [argument.replace("{fd}", str(theirs.fileno())) for argument in given]
    with theirs:
        process = subprocess.Popen([sys.executable, *arguments], pass_fds=(theirs.fileno(),))
    peer = Peer(ours, name="the acceptor of this test")
    peer.start()
    try:
        yield peer, process
    finally:
        peer.close()
        if process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_PATIENCE)
        process.kill()
        process.wait()


def ask(peer: Peer, **header: Any) -> dict[str, Any]:
    return dict(peer.request(Service.SESSION, header, timeout=_PATIENCE).header)


def greet(peer: Peer, **more: Any) -> dict[str, Any]:
    return ask(peer, op="hello", **{"versions": versions.installed(), **more})


def run(peer: Peer, code: str) -> Any:
    return peer.request(Service.APP, {"code": code}, timeout=_PATIENCE).header["value"]


def test_the_module_serves_a_client() -> None:
    with acceptor("-m", "remotegpu_offload.acceptor.session", "--fd", "{fd}", "--name", "mine") as (peer, process):
        environment = greet(peer)["environment"]
        assert environment["name"] == "mine"
        assert environment["python"] == platform.python_version()
        assert environment["backend"] == "cpu"
        assert ask(peer, op="bye") == {}
        assert process.wait(_PATIENCE) == 0


def test_a_program_finds_its_arguments_and_the_variables_that_may_cross() -> None:
    kept = {"HOME": "/nowhere", "LD_PRELOAD": "evil.so", "CUDA_VISIBLE_DEVICES": "7"}
    with acceptor() as (peer, process):
        greet(peer, argv=["train.py", "--fast"], env={"MY_NUMBER": "4", **kept})
        assert run(peer, "import sys; value = sys.argv") == ["train.py", "--fast"]
        names = json.dumps(["MY_NUMBER", *kept])
        found = run(peer, f"import os; value = [os.environ.get(name) for name in {names}]")
        assert found == ["4", *(os.environ.get(name) for name in kept)]
        folder = Path(run(peer, "import os; value = os.getcwd()"))
        assert folder == Path(run(peer, "value = str(session.folder)"))
        assert folder.is_dir()
        ask(peer, op="bye")
        process.wait(_PATIENCE)
    assert not folder.exists()


@pytest.mark.parametrize("end", ["lost", "killed client"])
def test_an_acceptor_ends_with_its_connection(end: str) -> None:
    with acceptor() as (peer, process):
        greet(peer)
        folder = Path(run(peer, "value = str(session.folder)"))
        peer.close()
        assert process.wait(_PATIENCE) == 0
    assert not folder.exists()


@pytest.mark.parametrize(("package", "theirs"), [("python", "3.1.9"), ("torch", "1.13.1")], ids=["python", "torch"])
def test_other_minor_versions_are_refused_with_both_named(package: str, theirs: str) -> None:
    ours = {"python": platform.python_version(), "torch": "2.15.0+cpu"}
    code = _ACCEPTOR.replace("session.main(", "session.versions.installed = lambda: " + repr(ours) + "\nsession.main(")
    with acceptor("-c", code, "{fd}") as (peer, _):
        with pytest.raises(RemoteFailure) as refused:
            greet(peer, versions={**ours, package: theirs})
        assert f"the client has {package} {theirs}" in refused.value.error
        assert f"the acceptor {package} {ours[package]}" in refused.value.error
        assert "skew: allow" in refused.value.error
        # Nothing was begun for a client that was refused.
        with pytest.raises(RemoteFailure):
            run(peer, "value = 1")
        warned = greet(peer, versions={**ours, package: theirs}, allow_skew=True)["warnings"]
        assert warned == [f"the client has {package} {theirs}, the acceptor {package} {ours[package]}"]


def test_another_numpy_major_is_a_warning_and_a_missing_package_is_nothing() -> None:
    skew = versions.compare({"python": "3.11.2", "numpy": "1.26.4"}, {"python": "3.11.9", "numpy": "2.0", "torch": "2"})
    assert not skew.refusals
    assert skew.warnings == ("the client has numpy 1.26.4, the acceptor numpy 2.0",)
    assert skew.sentence("x") == ""


def test_nothing_is_greeted_twice_and_nonsense_is_refused() -> None:
    with acceptor() as (peer, _):
        greet(peer)
        with pytest.raises(RemoteFailure) as refused:
            greet(peer)
        assert refused.value.details["type"] == "GreetingError"
        with pytest.raises(RemoteFailure) as refused:
            ask(peer, op="dance")
        assert refused.value.details["type"] == "GreetingError"


def test_statistics_count_what_came_and_went() -> None:
    with acceptor() as (peer, _):
        greet(peer)
        run(peer, "value = 'x' * 100000")
        found = ask(peer, op="stats")
        assert found["counters"]["served"] == {"SESSION": 2, "APP": 1}
        assert found["counters"]["bytes_out"] >= 100000
        assert found["memory_bytes"] > 1 << 20
        assert found["seconds"] >= 0


@pytest.mark.parametrize("main", [True, False], ids=["main thread", "another thread"])
def test_cancelling_interrupts_what_runs_and_nothing_else(main: bool) -> None:
    """The endless loop tells us that it runs by calling back; then it is cancelled."""
    loop = """
try:
    session.peer.request(session_module.Service.APP, {})
    while True:
        time.sleep(0.01)
except KeyboardInterrupt:
    value = "interrupted"
"""
    code = "import time, sys; session_module = sys.modules['remotegpu_offload.acceptor.session']" + loop
    with acceptor() as (peer, _):
        greet(peer)

        def running(request: Request) -> Message:
            peer.notify(Service.SESSION, {"op": "cancel", "thread": request.thread})
            return Message({})

        peer.serve(Service.APP, running)
        answers: list[Any] = []
        if main:
            answers.append(run(peer, code))
        else:
            thread = threading.Thread(target=lambda: answers.append(run(peer, code)))
            thread.start()
            thread.join(_PATIENCE)
        assert answers == ["interrupted"]
        # With nothing to interrupt, cancelling does nothing.
        peer.notify(Service.SESSION, {"op": "cancel", "thread": 1})
        assert run(peer, "value = 5") == 5


def test_the_reason_of_an_end_reaches_the_client() -> None:
    with acceptor() as (peer, process):
        said: list[Any] = []
        heard = threading.Event()

        def hear(request: Request) -> None:
            said.append(request.header)
            heard.set()

        peer.serve(Service.SESSION, hear, inline=True)
        greet(peer)
        peer.notify(
            Service.APP, {"code": "import threading; threading.Thread(target=session.end, args=('enough',)).start()"}
        )
        assert heard.wait(_PATIENCE)
        assert said == [{"op": "end", "reason": "enough"}]
        assert process.wait(_PATIENCE) == 0
