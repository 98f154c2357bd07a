"""Unmodified programs in a pod: the share comes from the pod's volume, and a claim on the real API server gives it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
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
    """A container's environment: the client is where the loader looks, and nothing names an appliance."""
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
    """Its address and the authority of its certificate have changed: the pod's volume names the new ones."""
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
            """Opens proxies to both of its ports, and writes a session file that names them."""
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


def through(directory: Path, appliance: ClaimAppliance, host: str) -> Callable[[], list[FaultProxy]]:
    """Returns a function that opens proxies to both ports of an appliance; the session file names them already."""
    there, port = appliance.endpoint.rsplit(":", 1)
    session = json.loads((directory / "session").read_text())
    session["appliances"][0]["endpoint"] = f"{host}:{port}"
    (directory / "session").write_text(json.dumps(session))
    numbers = [int(port) + more for more in (0, 1)]
    return lambda: [FaultProxy(there, number, listen_host=host, listen_port=number) for number in numbers]


# Longer than anything else waits for a network, which is 5 s.
LONG = 5.5


@pytest.mark.parametrize(
    ("before", "seconds"),
    [("nobody listens", LONG), ("connections break", 0.0), ("nothing comes back", LONG)],
)
def test_a_program_waits_for_its_pods_network(
    appliance: ClaimAppliance, claim: Claim, pod: Pod, tmp_path: Path, before: str, seconds: float
) -> None:
    """A network policy learns of the pod late, or a sidecar starts next to it: then the program continues."""
    directory = appliance.pod_directory(tmp_path, claim, pod)
    make = through(directory, appliance, "127.0.0.4")
    with contextlib.ExitStack() as opened:
        ways = [opened.enter_context(way) for way in make()] if before != "nobody listens" else []
        for way in ways:
            (way.refuse if before == "connections break" else way.swallow)()
        command = [sys.executable, str(PROGRAMS / "vector_add.py")]
        with subprocess.Popen(
            command, env=environment(directory), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as running:
            assert running.stderr
            told = running.stderr.readline()
            assert "is not reached yet" in told
            heard = time.monotonic()  # it says so after two seconds
            assert f"kubectl describe gpuclaim {claim.name} -n {claim.namespace}" in told
            until(lambda: time.monotonic() - heard > seconds - 2, 60, "the network has been away for long")
            for way in ways or [opened.enter_context(way) for way in make()]:
                (way.accept if before == "connections break" else way.carry)()
            out, err = running.communicate(timeout=90)
    assert (running.returncode, out) == (0, "ok\n"), err
    reached = re.search(r"is reached after ([\d.]+) s", err)
    assert reached and float(reached[1]) > min(seconds, 5), err


def test_a_session_of_offload_waits_for_its_pods_network(
    appliance: ClaimAppliance, claim: Claim, pod: Pod, tmp_path: Path
) -> None:
    """It waits like a CUDA program. Then this appliance answers that it serves no offload."""
    directory = appliance.pod_directory(tmp_path, claim, pod)
    make = through(directory, appliance, "127.0.0.8")
    ours, theirs = socket.socketpair()
    with ours, theirs, contextlib.ExitStack() as opened, subprocess.Popen(
        [DIST / "bin" / "remotegpu-connect"], env=environment(directory), text=True,
        stdin=theirs.fileno(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as running:  # fmt: skip
        assert running.stderr
        assert "is not reached yet" in running.stderr.readline()
        for way in make():
            opened.enter_context(way)
        out, err = running.communicate(timeout=90)
    assert "is reached after" in err
    assert "serves no offload" in json.loads(out)["error"]


def test_nvidia_smi_does_not_wait_for_a_network(
    appliance: ClaimAppliance, claim: Claim, pod: Pod, tmp_path: Path
) -> None:
    directory = appliance.pod_directory(tmp_path, claim, pod)
    with contextlib.ExitStack() as opened:
        for way in through(directory, appliance, "127.0.0.5")():
            opened.enter_context(way).swallow()
        done = run(directory, str(DIST / "bin" / "nvidia-smi"))
    assert done.returncode != 0
    assert "no answer from 127.0.0.5" in done.stderr
    assert "within 5 s" in done.stderr


def test_cuda_is_asked_again_where_there_was_no_device(
    appliance: ClaimAppliance, claim: Claim, pod: Pod, tmp_path: Path
) -> None:
    directory = appliance.pod_directory(tmp_path, claim, pod)
    session = (directory / "session").read_text()
    (directory / "session").write_text("")
    command = [sys.executable, str(PROGRAMS / "ask_again.py")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment(directory), stdin=pipe, stdout=pipe, stderr=pipe, text=True) as it:
        assert it.stdin
        assert line(it) == "100"
        (directory / "session").write_text(session)
        it.stdin.write("again\n")
        it.stdin.flush()
        assert line(it) == "0"
        out, err = it.communicate(timeout=30)
    assert (it.returncode, out) == (0, "1\n"), err


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
    lines = [line for line in done.stderr.splitlines() if line.startswith("remotegpu")]
    # On a busy machine the appliance's answer takes longer than a pod's program waits without a word.
    (told,) = [line for line in lines if "is not reached yet" not in line]
    assert words in told


@pytest.fixture
def folder_of_node() -> Iterator[Path]:
    """A folder for appliances' sockets, where pods look for theirs."""
    if os.geteuid() != 0:
        pytest.skip("needs root, for a folder in /run and for a program that does not see /proc")
    made = Path("/run/remotegpu") / f"test-{os.getpid()}"
    made.mkdir(parents=True)
    yield made
    shutil.rmtree(made)
    with contextlib.suppress(OSError):
        made.parent.rmdir()


@pytest.mark.parametrize("how", ["kill", "exit"])
def test_the_end_of_a_process_on_the_node_is_seen(
    cluster: Cluster, pod: Pod, folder_of_node: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, how: str
) -> None:
    """By a socket of the node, though the session uses TLS, from which the process cannot be identified."""
    tls = Tls(tmp_path_factory.mktemp("tls"), "appliance-near")
    built = tmp_path / "hand_over"
    subprocess.run(["cc", "-O1", "-o", built, PROGRAMS / "hand_over.c", "-ldl"], check=True)
    options = ("--grace", "60s", "--local-sockets", str(folder_of_node))
    with ClaimAppliance(DIST, cluster, *options, name="appliance-near", tls=tls) as it:
        until(it.ready, 10, "the claims are known")
        made = cluster.claim(pod.namespace, it.place(SHARE), consumers=[pod])
        until(lambda: it.served(made), 5, "the appliance has seen the claim")
        directory = it.pod_directory(tmp_path / "pod", made, pod)
        hidden = f'mount -t tmpfs none /proc && exec "{built}" {how} 5 85 0'
        done = run(directory, "unshare", "--mount", "sh", "-c", hidden)
        cluster.delete_claim(made)
    found = re.match(r"5 rounds, 0 refused, 0 wrong; median ([\d.]+)", done.stdout)
    assert found, done.stdout + done.stderr
    # A client whose network is lost has three seconds to come back.
    assert float(found[1]) < 1000, done.stdout
