"""Offload sessions of a real appliance: which environment they get, why they are refused, and what is shown of them."""

from __future__ import annotations

import json
import os
import platform
import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from offload_appliance import PATIENCE, lease, offload_appliance, open_session, session
from offload_hostile import hostile_environment, run
from support.stand_in import StandIn, Tenant
from support.system import free_port, until

from remotegpu.rpc import pb
from remotegpu_offload.wire.frames import Service

PYTHON = platform.python_version()


@pytest.fixture(scope="module")
def metrics_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Environments that cannot work: no Python; a torch that cannot be imported."""
    folder = tmp_path_factory.mktemp("broken")
    found = []
    for name, script in (
        ("no-python", "exit 3"),
        ("torn", f'PYTHONPATH="$PYTHONPATH:{folder}/torn.packages" exec {sys.executable} "$@"'),
    ):
        program = folder / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        found.append(f"{name}={program}")
    packages = folder / "torn.packages" / "torch"
    packages.mkdir(parents=True)
    (packages / "__init__.py").write_text("raise OSError('libtorch_cuda.so: wrong ELF class')\n")
    return found


@pytest.fixture(scope="module")
def appliance(tmp_path_factory: pytest.TempPathFactory, broken: list[str], metrics_port: int) -> Iterator[StandIn]:
    folder = tmp_path_factory.mktemp("appliance")
    environments = (f"here={sys.executable}:cpu", hostile_environment(folder / "hostile"), *broken)
    options = ("--metrics-port", str(metrics_port))
    with offload_appliance(folder, *options, environments=environments) as it:
        yield it


@pytest.fixture
def tenant(appliance: StandIn) -> Iterator[Tenant]:
    with lease(appliance) as it:
        yield it


def test_a_session_gets_the_environment_it_names(tenant: Tenant) -> None:
    for name in ("here", "hostile"):
        reply = open_session(tenant, environment=name)
        assert reply.refusal == ""
        assert (reply.environment.name, reply.environment.backend) == (name, "cpu")
        assert reply.environment.python == PYTHON
        assert "cloudpickle" in reply.environment.packages


def test_without_a_name_the_first_that_fits_is_chosen(tenant: Tenant) -> None:
    assert open_session(tenant).environment.name == "here"
    assert open_session(tenant, backends=["cuda", "rocm", "cpu"]).environment.backend == "cpu"


@pytest.mark.parametrize(
    ("wish", "names"),
    [
        ({"environment": "other"}, r"'other'.*\bhere \(cpu\), hostile \(cpu\)"),
        ({"backends": ["rocm", "xpu"]}, r"\brocm or xpu\b.*\bhere \(cpu\)"),
        ({"environment": "here", "backends": ["cuda"]}, r"\bhere\b.*\bcuda\b.*\bhere \(cpu\)"),
        ({"environment": "no-python"}, r"\bno-python: "),
        ({"versions": {"python": "3.2.1"}}, rf"\bpython 3\.2\.1\b.*\bpython {re.escape(PYTHON)}"),
    ],
    ids=["name", "back ends", "name and back end", "broken", "skew"],
)
def test_a_wish_that_cannot_be_met_is_refused_with_the_reason(tenant: Tenant, wish: dict[str, Any], names: str) -> None:
    reply = open_session(tenant, **wish)
    assert re.search(names, reply.refusal), reply.refusal
    assert not reply.session_id
    assert tenant.appliance.client.inventory().leases[0].sessions == 0


def test_skew_is_taken_when_the_client_says_so(tenant: Tenant) -> None:
    reply = open_session(tenant, versions={"python": "3.2.1"}, allow_skew=True)
    assert reply.environment.name == "here"


def test_an_appliance_without_environments_says_so(tmp_path: Path) -> None:
    from support.stand_in import make_dist

    with StandIn(make_dist(tmp_path / "dist")) as it, lease(it) as tenant:
        assert "start it with --offload PYTHON" in open_session(tenant).refusal
        assert not it.client.hello().environments


def test_broken_environments_fail_in_health_and_the_others_serve(appliance: StandIn) -> None:
    health = appliance.cli("doctor", "--json")
    checks = {check["name"]: check for check in json.loads(health.stdout)["checks"]}
    assert health.returncode != 0
    assert checks["environment here"]["status"] == "ok"
    assert f"Python {PYTHON}" in checks["environment here"]["message"]
    assert checks["environment no-python"]["status"] == "fail"
    assert "ended at its start (exit code 3)" in checks["environment no-python"]["message"]
    assert checks["environment torn"]["status"] == "fail"
    assert "`import torch` fails" in checks["environment torn"]["message"]
    assert "wrong ELF class" in checks["environment torn"]["message"]
    assert checks["environment torn"]["fix"]
    assert checks["environment here: isolation"]["status"] in ("ok", "warn")


def test_environments_are_shown(appliance: StandIn) -> None:
    assert not appliance.client.hello().environments, "a stranger learns of none"
    with lease(appliance) as tenant:
        granted, versions = tenant.granted, appliance.client.versions
        asked = pb.HelloRequest(versions=versions, lease_id=granted.lease_id, lease_secret=granted.lease_secret)
        told = appliance.client._stub.Hello(asked, timeout=20).environments
    assert [one.name for one in told] == ["here", "hostile"]
    listed = json.loads(appliance.cli("ls", "--json").stdout)["appliances"][0]["environments"]
    assert [(one["name"], one["backend"], one["python"]) for one in listed] == [
        ("here", "cpu", PYTHON),
        ("hostile", "cpu", PYTHON),
    ]
    for command in ("ls", "smi"):
        text = appliance.cli(command).stdout
        assert "ENVIRONMENT" in text
        assert any("here" in line and PYTHON in line for line in text.splitlines())


def test_sessions_are_counted(appliance: StandIn, tenant: Tenant, metrics_port: int) -> None:
    def metric(name: str) -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=20) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    opened = metric('remotegpu_offload_sessions_opened_total{environment="here"}')
    received = metric("remotegpu_received_bytes_total")
    assert metric('remotegpu_environment{backend="cpu",environment="here"') == 1
    with session(tenant) as peer:
        assert appliance.client.inventory().leases[0].sessions == 1
        peer.request(Service.SESSION, {"op": "stats"}, [b"x" * 100_000], timeout=PATIENCE)
        until(lambda: metric("remotegpu_received_bytes_total") >= received + 100_000, 30, "bytes are counted")
    assert metric('remotegpu_offload_sessions_opened_total{environment="here"}') == opened + 1


def test_limits_count_acceptors_like_workers(tmp_path: Path) -> None:
    with offload_appliance(tmp_path, "--sessions-per-lease", "1") as it, lease(it) as tenant:
        with session(tenant):
            assert "limit of 1 sessions" in open_session(tenant).refusal
        until(lambda: it.client.inventory().leases[0].sessions == 0, 30, "the session has ended")
        with session(tenant) as peer:
            assert peer.request(Service.SESSION, {"op": "stats"}, timeout=PATIENCE)


def test_sessions_share_nothing_of_chance(tenant: Tenant) -> None:
    """Both are forks of one interpreter whose generators were seeded once."""
    draw = "import random, secrets, uuid, tempfile; value = [random.random(), secrets.token_hex(4), str(uuid.uuid4())]"
    numpy = "import numpy; value = numpy.random.random()"
    with session(tenant, environment="hostile") as one, session(tenant, environment="hostile") as other:
        for code in (draw, numpy):
            assert run(one, code) != run(other, code)


def test_a_session_starts_empty(tenant: Tenant) -> None:
    """Neither variables of the appliance nor what an earlier session has set."""
    with session(tenant, environment="hostile") as one:
        run(one, "import os, sys, json; os.environ['LEFT'] = '1'; json.left = 1; sys.modules['left'] = json")
        run(one, "open('left', 'w').close()")
    with session(tenant, environment="hostile") as other:
        code = "value = [dict(os.environ), hasattr(json, 'left'), 'left' in sys.modules, os.listdir()]"
        variables, attribute, module, files = run(other, f"import os, sys, json; {code}")
    assert not attribute
    assert not module
    assert "left" not in files
    allowed = {"PATH", "USER", "LOGNAME", "HOME", "TMPDIR", "LANG", "PYTHONPATH", "LC_CTYPE"}
    allowed |= {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"}
    assert set(variables) <= allowed
    assert variables["HOME"] == variables["TMPDIR"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give out user ids")
def test_each_session_has_a_user_of_its_own(tenant: Tenant) -> None:
    ask = "import os; value = os.getresuid()[:] + os.getresgid()[:]; value = [list(value), os.getgroups()]"
    with session(tenant, environment="hostile") as one, session(tenant, environment="hostile") as other:
        mine, groups = run(one, ask)
        theirs, _ = run(other, ask)
        assert len(set(mine)) == len(set(theirs)) == 1
        assert mine[0] != theirs[0] != 0
        assert groups == []


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--offload", "/nowhere/python"], ["/nowhere/python"]),
        (["--offload", f"x={sys.executable}:tpu"], ["'tpu'", "cuda, rocm, xpu, cpu"]),
        (["--offload", f"a b={sys.executable}"], ["'a b'"]),
        (["--offload", f"x={sys.executable}", "--offload", f"x={sys.executable}"], ["'x'"]),
        (["--offload-memory", "much"], ["--offload-memory", "'much'"]),
    ],
)
def test_mistakes_at_the_start_are_a_sentence(options: list[str], names: list[str]) -> None:
    command = [str(Path(sys.executable).parent / "remotegpu"), "appliance", "--listen", "127.0.0.1:0", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 2
    assert all(name in done.stderr for name in names), done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_connection_without_a_greeting_is_served_nothing(tenant: Tenant) -> None:
    reply = open_session(tenant)
    connection = tenant.connect(b"RGP1", reply.session_id, reply.ticket)
    connection.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(4096))
    with pytest.raises((ConnectionError, socket.timeout, AssertionError)):
        assert connection.recv(1 << 16)
    # The ticket was good once.
    with pytest.raises(ConnectionRefusedError):
        tenant.connect(b"RGP1", reply.session_id, reply.ticket)
