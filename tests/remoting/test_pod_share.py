"""Unmodified programs in a pod: the share comes from the pod's volume, and a claim on the real API server gives it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster.certificates import Authority
from support.apiserver import ApiServer
from support.claims import Claim, ClaimAppliance, Cluster, Pod, Tls
from support.faultproxy import FaultProxy
from support.system import DIST, MIB, PROGRAMS, line, until

SHARE = 256 * MIB


@pytest.fixture(scope="module")
def cluster(apiserver: ApiServer) -> Cluster:
    return Cluster(apiserver)


@pytest.fixture(scope="module")
def appliance(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClaimAppliance]:
    tls = Tls(tmp_path_factory.mktemp("tls"), "appliance-real")
    with ClaimAppliance(DIST, cluster, name="appliance-real", tls=tls) as it:
        until(it.ready, 10, "the claims are known")
        yield it


@pytest.fixture(scope="module")
def pod(cluster: Cluster) -> Pod:
    return cluster.pod(cluster.namespace())


@pytest.fixture
def claim(cluster: Cluster, appliance: ClaimAppliance, pod: Pod) -> Iterator[Claim]:
    made = cluster.claim(pod.namespace, appliance.place(SHARE), consumers=[pod])
    until(lambda: appliance.served(made), 5, "the appliance has seen the claim")
    yield made
    cluster.delete_claim(made)
    until(lambda: appliance.leased == 0, 10, "all memory is free again")


def environment(directory: Path) -> dict[str, str]:
    """Of a container: the client lies where the loader looks, and nothing names an appliance."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("REMOTEGPU_")}
    return {**kept, "LD_LIBRARY_PATH": str(DIST / "client"), "REMOTEGPU_POD_DIRECTORY": str(directory)}


def run(directory: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=environment(directory), capture_output=True, text=True, timeout=100)


def program(directory: Path, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(directory, sys.executable, str(PROGRAMS / name), *arguments)


def test_a_program_computes_on_its_pods_share(
    appliance: ClaimAppliance, claim: Claim, pod: Pod, tmp_path: Path
) -> None:
    directory = appliance.pod_directory(tmp_path, claim, pod)
    done = program(directory, "vector_add.py")
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
    until(lambda: appliance.gpus[0].used_bytes == 0, 5, "the session has ended")


def test_the_share_is_the_limit_and_nvidia_smi_shows_it(
    appliance: ClaimAppliance, claim: Claim, pod: Pod, tmp_path: Path
) -> None:
    directory = appliance.pod_directory(tmp_path, claim, pod)
    shown = run(directory, str(DIST / "bin" / "nvidia-smi"), "--query-gpu=memory.total", "--format=csv,noheader")
    assert shown.stdout.split() == ["256", "MiB"], shown.stderr
    done = program(directory, "memory_seen.py")
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert [seen[name] for name in ("total", "device_total", "nvml_total")] == [SHARE] * 3
    # A byte more is out of memory.
    assert (seen["allocated"], seen["code"]) == (SHARE, 2)


def test_an_appliance_that_moved_is_found_again(
    cluster: Cluster, pod: Pod, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Its address is another one, and another authority has signed its certificate: the pod's volume says so."""
    tls = Tls(tmp_path_factory.mktemp("tls"), "appliance-moves")
    with (
        ClaimAppliance(DIST, cluster, "--grace", "60s", name="appliance-moves", tls=tls) as it,
        contextlib.ExitStack() as before,
    ):
        until(it.ready, 10, "the claims are known")
        made = cluster.claim(pod.namespace, it.place(SHARE), consumers=[pod])
        until(lambda: it.served(made), 5, "the appliance has seen the claim")
        directory, host_port = it.pod_directory(tmp_path, made, pod), it.endpoint.rpartition(":")

        def reached_at(host: str) -> list[FaultProxy]:
            """A way to both of its ports, and a session file that names it."""
            numbers = [int(host_port[2]) + more for more in (0, 1)]
            ways = [FaultProxy(host_port[0], each, listen_host=host, listen_port=each) for each in numbers]
            session = json.loads((directory / "session").read_text())
            session |= {"ca": tls.authority.certificate.decode()}
            session["appliances"][0]["endpoint"] = f"{host}:{numbers[0]}"
            (directory / "session.new").write_text(json.dumps(session))
            (directory / "session.new").rename(directory / "session")
            return [before.enter_context(way) for way in ways]

        first = reached_at("127.0.0.2")
        command = [sys.executable, str(PROGRAMS / "endless_calls.py"), "8"]
        with subprocess.Popen(
            command, env=environment(directory), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as running:
            assert line(running) == "ready"
            for way in first:
                way.refuse()
                way.cut()
            tls.authority = Authority("another")
            tls.renew()
            reached_at("127.0.0.3")
            assert line(running) == "finished"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda folder: (folder / "session").unlink(), "resources.limits"),
        (lambda folder: (folder / "session").write_text(""), "`kubectl get gpuclaims`"),
        (lambda folder: (folder / "session").write_text("{"), "/session: "),
        (lambda folder: (folder / "token").unlink(), "/token "),
        (lambda folder: (folder / "token").write_text("x"), "does not accept the token"),
    ],
)
def test_what_is_missing_is_reported_with_the_next_step(
    appliance: ClaimAppliance, claim: Claim, pod: Pod, tmp_path: Path, change: object, words: str
) -> None:
    directory = appliance.pod_directory(tmp_path, claim, pod)
    assert callable(change)
    change(directory)
    done = program(directory, "vector_add.py")
    assert done.returncode != 0
    (told,) = [line for line in done.stderr.splitlines() if line.startswith("remotegpu")]
    assert words in told
