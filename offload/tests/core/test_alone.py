"""Runs everything that a session can do, in the sandbox of a `restricted` pod: no namespaces, sockets and processes."""

from __future__ import annotations

import importlib
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from offload_appliance import PATIENCE, lease, offload_appliance, open_session
from support.stand_in import StandIn, Tenant
from support.system import until

from remotegpu_offload.client.places import Wish
from remotegpu_offload.client.session import Session
from remotegpu_offload.config import Config
from remotegpu_offload.config.model import FunctionRule
from remotegpu_offload.functions import client

pytestmark = [
    pytest.mark.timeout(240),
    # joblib asks for a semaphore when scikit-learn is imported there, and says so.
    pytest.mark.filterwarnings("ignore:.*joblib will operate in serial mode:UserWarning"),
]
# The kernel of a container refuses namespaces, and Docker's and Kubernetes' own filters do.
ZYGOTE = """
import errno, sys
sys.argv[1:] = sys.argv[sys.argv.index("--control-fd"):]
from remotegpu_offload.acceptor import syscalls, zygote

def refuse(flags):
    raise OSError(errno.EPERM, "no namespaces here")

syscalls.unshare = refuse
zygote.main()
"""

STEPS = """
import os, socket
from sklearn.linear_model import LinearRegression

def denied():
    attempts = {"socket": socket.socket, "fork": os.fork, "own socket": lambda: socket.socket(socket.AF_UNIX)}
    refused = []
    for name, attempt in attempts.items():
        try:
            attempt()
        except OSError:
            refused.append(name)
    return refused

def fit(x, y):
    model = LinearRegression().fit(x, y)
    print("fitted")
    return [round(float(value), 9) for value in model.coef_], os.getpid()
"""


@pytest.fixture(scope="module")
def appliance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    folder = tmp_path_factory.mktemp("alone")
    folder.chmod(0o755)
    (folder / "zygote.py").write_text(ZYGOTE)
    program = folder / "python"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -P -s {folder / "zygote.py"} "$@"\n')
    for path in folder.iterdir():
        path.chmod(0o755)
    with offload_appliance(folder, environments=(f"alone={program}:cpu",), uids=False) as it:
        yield it


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the program's folder, with its module."""
    (tmp_path / "steps_alone.py").write_text(STEPS)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.fixture
def session(appliance: StandIn, folder: Path) -> Iterator[Session]:
    with lease(appliance) as tenant:
        opened = Session.open(Config(folder=folder), connector=Connector(tenant))
        yield opened
        opened.close()


class Connector:
    """Connects as remotegpu-connect does, in this process."""

    def __init__(self, tenant: Tenant) -> None:
        self._tenant = tenant

    def __call__(self, wanted: Wish) -> tuple[socket.socket, dict[str, Any]]:
        reply = open_session(self._tenant)
        assert not reply.refusal, reply.refusal
        connection = self._tenant.connect(b"RGP1", reply.session_id, reply.ticket)
        connection.settimeout(None)
        found = reply.environment
        environment = {"name": found.name, "backend": found.backend, "python": found.python, "packages": {}}
        return connection, {"environment": environment, "place": "the acceptor of this test"}


def remote(session: Session, function: Any) -> Any:
    return client.wrap(function, FunctionRule("test"), session)


def test_functions_run_and_print(session: Session, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    steps = importlib.import_module("steps_alone")
    assert sorted(remote(session, steps.denied)()) == ["fork", "own socket", "socket"]
    x = np.random.default_rng(0).normal(size=(50, 3))
    coefficients, pid = remote(session, steps.fit)(x, x @ [1.0, 2.0, 3.0])
    assert coefficients == [1.0, 2.0, 3.0] and pid != os.getpid()
    until(lambda: "fitted" in capfd.readouterr().out, PATIENCE, "what it prints is printed here")
