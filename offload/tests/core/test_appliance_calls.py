"""Sessions in the sandbox of a real appliance: paged code, calls, own processes, large values."""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from offload_appliance import lease, offload_appliance, open_session
from support.stand_in import Tenant

from remotegpu_offload.client.places import Connector, Wish
from remotegpu_offload.client.session import Session
from remotegpu_offload.config.load import parse
from remotegpu_offload.config.model import FunctionRule
from remotegpu_offload.functions.client import wrap

_STRANGER = 60_000 + os.getpid() % 3000 if os.geteuid() == 0 else None
_WORK = """
import concurrent.futures
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile

import numpy as np


class Scaled:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, array):
        return array * self.factor


def solve(matrix, scale):
    inverse = np.linalg.inv(matrix)
    return scale(inverse), os.getpid(), os.getcwd()


def fail(value):
    raise LookupError(f"not {value}")


def square(number):
    return number * number


def in_processes(count):
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
        return list(pool.map(square, range(count)))


def started():
    return subprocess.run([sys.executable, "-c", "print(6 * 7)"], capture_output=True, text=True, check=True).stdout


def written(text):
    with tempfile.NamedTemporaryFile("w+") as file:
        file.write(text)
        file.flush()
        with open(file.name) as again:
            return again.read()


def to_itself():
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            return accepted.getsockname()[0]
"""


def connector(tenant: Tenant) -> Connector:
    """Connects through the gateway of the appliance, as `remotegpu-connect` does."""

    def connect(wanted: Wish) -> tuple[Any, dict[str, Any]]:
        reply = open_session(tenant, environment=wanted.environment, backends=list(wanted.backends))
        assert not reply.refusal, reply.refusal
        connection = tenant.connect(b"RGP1", reply.session_id, reply.ticket)
        connection.settimeout(None)
        one = reply.environment
        described = {"name": one.name, "backend": one.backend, "python": one.python, "packages": dict(one.packages)}
        return connection, {"environment": {**described, "devices": list(one.devices)}}

    return connect


@pytest.fixture(scope="module")
def work() -> Iterator[ModuleType]:
    """Makes a module of the user's, which the acceptor does not have."""
    folder = Path(tempfile.mkdtemp(prefix="remotegpu-test-"))
    name = f"work_{os.getpid()}"
    (folder / f"{name}.py").write_text(_WORK)
    sys.path.insert(0, str(folder))
    try:
        yield importlib.import_module(name)
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop(name, None)
        shutil.rmtree(folder)


@pytest.fixture(scope="module", params=["own user", "our user"])
def session(request: pytest.FixtureRequest, work: ModuleType) -> Iterator[Session]:
    """Opens a session with namespaces: of an appliance that runs as root, or of an ordinary user's."""
    folder = Path(tempfile.mkdtemp(prefix="remotegpu-test-"))
    folder.chmod(0o755)
    stranger = _STRANGER if request.param == "our user" else None
    config = parse(
        f"version: 1\nsession: {{backends: [cpu]}}\noffload: [{{function: {work.__name__}.*}}]\n"
        f"code: {{page: [{work.__name__}]}}\n",
        folder=Path(str(work.__file__)).parent,
    )
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        appliance = stack.enter_context(offload_appliance(folder, stranger=stranger))
        tenant = stack.enter_context(lease(appliance))
        opened = Session.open(config, connector=connector(tenant))
        stack.callback(opened.close)
        yield opened


def offloaded(session: Session, function: Any) -> Any:
    return wrap(function, FunctionRule(f"{function.__module__}.{function.__qualname__}"), session)


def test_a_call_computes_what_it_computes_locally(session: Session, work: ModuleType) -> None:
    matrix = np.random.default_rng(4).normal(size=(200, 200))
    local, _, _ = work.solve(matrix, work.Scaled(3.0))
    remote, pid, folder = offloaded(session, work.solve)(matrix, work.Scaled(3.0))
    assert np.array_equal(remote, local)
    assert pid < 10
    assert folder == str(Path.cwd())
    with pytest.raises(LookupError) as failed:
        offloaded(session, work.fail)(5)
    assert failed.value.args == ("not 5",)


def test_a_program_may_start_processes_of_its_own(session: Session, work: ModuleType) -> None:
    assert offloaded(session, work.in_processes)(20) == [number * number for number in range(20)]
    assert offloaded(session, work.started)() == "42\n"


def test_a_program_may_write_temporary_files_and_talk_to_itself(session: Session, work: ModuleType) -> None:
    assert offloaded(session, work.written)("text") == "text"
    assert offloaded(session, work.to_itself)() == "127.0.0.1"


def test_large_values_come_back_whole(session: Session, work: ModuleType) -> None:
    large = np.arange(8 << 20, dtype=np.float64).reshape(4096, -1)
    assert np.array_equal(offloaded(session, np.flip)(large), large[::-1, ::-1])
