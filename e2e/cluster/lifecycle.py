"""Brings the cluster up and takes it down; what is there already is left as it is."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from cluster import cgroups, images, programs
from cluster.addresses import CHOICE, FAMILY, chosen
from cluster.control_plane import PROGRAMS, ControlPlane
from cluster.node import BRIDGE, MOUNT_POINTS, Node, ip
from cluster.parts import STOP_SECONDS, Part, gone, start_time
from cluster.progress import step, wait

TARGET = PROGRAMS.parent
STATE = TARGET / "state"
# The address family that the running cluster was made with.
KEPT_FAMILY = STATE / "family"
NETWORKS = chosen(KEPT_FAMILY.read_text() if KEPT_FAMILY.exists() else FAMILY)
PLANE = ControlPlane(STATE, address=NETWORKS[0].host, etcd_port=12379, networks=NETWORKS)
NODES = (Node("node-a", 1, STATE, NETWORKS), Node("node-b", 2, STATE, NETWORKS))
CONTROL_PLANE = tuple(Part(STATE, name) for name in ("etcd", "apiserver", "controller-manager", "scheduler"))
KUBECONFIG = TARGET / "admin.kubeconfig"
# Mount points that were not there before, innermost last.
MADE = STATE / "made-folders"
# Written when each part has been started once.
COMPLETE = STATE / "complete"
READY_SECONDS = 120


def parts() -> list[Part]:
    return [*CONTROL_PLANE, *(part for node in NODES for part in node.parts)]


def part(name: str) -> Part:
    known = {part.name: part for part in parts()}
    if name not in known:
        raise RuntimeError(f"no part is called {name!r}; the parts are {', '.join(known)}")
    return known[name]


def kubectl(*arguments: str, check: bool = True) -> str:
    result = subprocess.run(
        [PROGRAMS / "kubectl", f"--kubeconfig={PLANE.admin}", *arguments], capture_output=True, text=True
    )
    if check and result.returncode:
        raise RuntimeError(f"kubectl {' '.join(arguments)}: {result.stderr.strip()}")
    return result.stdout


def is_up() -> bool:
    return all(status().values())


def up() -> None:
    if os.geteuid() != 0:
        raise RuntimeError("the cluster needs root, for its nodes are namespaces; run the same as root")
    if KEPT_FAMILY.exists() and CHOICE in os.environ and KEPT_FAMILY.read_text() != FAMILY:
        made = KEPT_FAMILY.read_text()
        raise RuntimeError(f"the cluster is up with {CHOICE}={made}: run `make cluster-down` for one with {FAMILY}")
    with _one_at_a_time():
        programs.install()
        # After a reboot, or an `up` that was interrupted, there is nothing left to resume.
        if STATE.exists() and not (COMPLETE.exists() and all(node.part("holder").pid for node in NODES)):
            down()
        if not STATE.exists():
            pause = images.pause()
            _start_control_plane()
            with step(f"nodes {', '.join(node.name for node in NODES)}"):
                _hold_nodes()
                _start_nodes(pause)
            COMPLETE.touch()
        for each in parts():
            if each.pid is None:
                with step(f"start {each.name} again"):
                    each.start()
            each.resume()
        _wait_ready()


def down() -> None:
    """Removes everything of the cluster but its programs and the images that were built."""
    if not STATE.exists():
        return
    with step("take the cluster down"):
        for node in reversed(NODES):
            _end_node(node)
        for part in reversed(CONTROL_PLANE):
            part.stop()
        if _bridge_exists():
            ip("link", "delete", BRIDGE)
        for folder in reversed(json.loads(MADE.read_text()) if MADE.exists() else []):
            with contextlib.suppress(OSError):
                Path(folder).rmdir()
        shutil.rmtree(STATE)
        KUBECONFIG.unlink(missing_ok=True)
        if left := remains():
            raise RuntimeError(f"the cluster is down, but this is left of it: {', '.join(left)}")


def remains() -> list[str]:
    """Returns the remains of a cluster outside its folder: control groups, mounts, and the bridge."""
    left = [str(group) for node in NODES for group in Path("/sys/fs/cgroup").glob(f"**/{node.name}")]
    left += [f"mount {line.split()[1]}" for line in Path("/proc/mounts").read_text().splitlines() if str(STATE) in line]
    return [*left, BRIDGE] if _bridge_exists() else left


def status() -> dict[str, int | None]:
    """Returns the process of each part, None if it does not run."""
    return {part.name: part.pid for part in parts()}


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    TARGET.mkdir(parents=True, exist_ok=True)
    with (TARGET / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _clear_leftovers() -> None:
    """Removes what is left of a cluster whose processes were killed and whose clone may be deleted.

    Raises RuntimeError if another clone's cluster runs on this machine: both need the same bridge and addresses.
    """
    if not _bridge_exists():
        return
    if any(cgroups.has_processes(node.name) for node in NODES) or _listens(PLANE.address, PLANE.etcd_port):
        raise RuntimeError(f"another clone's cluster runs on the bridge {BRIDGE}: run `make cluster-down` there")
    for node in NODES:
        cgroups.end(node.name)
    ip("link", "delete", BRIDGE)


def _listens(address: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=1):
        return True
    return False


def _start_control_plane() -> None:
    _clear_leftovers()
    with step("certificates, etcd, API server, controller manager, scheduler"):
        PLANE.make_certificates({node.name: node.addresses for node in NODES})
        KEPT_FAMILY.write_text(FAMILY)
        ip("link", "add", BRIDGE, "type", "bridge")
        for network in NETWORKS:
            more = ["nodad"] if network.version == 6 else []
            ip("address", "add", network.with_prefix(network.host), "dev", BRIDGE, *more)
        ip("link", "set", BRIDGE, "up")
        etcd, apiserver, controller_manager, scheduler = CONTROL_PLANE
        etcd.launch(PLANE.etcd())
        # No kube-proxy runs next to the API server: it calls a Service's endpoints itself.
        apiserver.launch(PLANE.apiserver("1.34", "--enable-aggregator-routing=true"))
        wait(
            lambda: "ok" in kubectl("get", "--raw", "/readyz", check=False),
            READY_SECONDS,
            lambda: f"the API server is not ready after {READY_SECONDS} s; its log is {apiserver.log}",
        )
        controller_manager.launch(PLANE.controller_manager())
        scheduler.launch(PLANE.scheduler())
        KUBECONFIG.unlink(missing_ok=True)
        KUBECONFIG.symlink_to(PLANE.admin.relative_to(TARGET))


def _hold_nodes() -> None:
    made = []
    for point in map(Path, MOUNT_POINTS):
        for folder in (*reversed(point.parents), point):
            if not folder.exists():
                folder.mkdir()
                made.append(str(folder))
    MADE.write_text(json.dumps(made))
    for node in NODES:
        node.hold()
    for node in NODES:
        held = node.folder / "held"
        wait(held.exists, 10, lambda node=node: f"{node.name} has no namespaces: {node.part('holder').log.read_text()}")  # type: ignore[misc]
        node.connect([other for other in NODES if other is not node])


def _start_nodes(pause: images.Image) -> None:
    """Starts each program after the one that it needs."""
    for node in NODES:
        node.configure(PLANE)
        node.launch(PLANE, "containerd")
    wait(_runtimes_answer, READY_SECONDS, lambda: f"containerd does not answer; its logs are in {STATE / 'logs'}")
    images.load(NODES, pause)
    for node in NODES:
        node.launch(PLANE, "kubelet", "kube-proxy")
    names = ("get", "nodes", "--output=name")
    wait(
        lambda: len(kubectl(*names).split()) == len(NODES),
        READY_SECONDS,
        lambda: f"not every kubelet registers its node; their logs are in {STATE / 'logs'}",
    )
    for node in NODES:
        node.launch(PLANE, "kube-netpol")


def crash(node: Node) -> None:
    """Simulates a loss of power: ends every process of the node at once, and clears /run, which is in memory."""
    for part in reversed(node.parts):
        part.kill()
    cgroups.end(node.name)
    _end_processes(node, but=node.part("holder").pid)
    # Network namespaces of pods are mounts there; their cables end with them. Some end with the mount below them.
    mounted = "awk '$5 ~ /^\\/run\\// {print $5}' /proc/self/mountinfo | sort -r"
    node.run("sh", "-c", f"{mounted} | xargs -r umount --lazy || true")
    node.run("find", "/run", "-mindepth", "1", "-delete")


def start_again(node: Node) -> None:
    cgroups.make(node.name)
    node.part("containerd").start()
    wait(lambda: _answers(node), READY_SECONDS, lambda: f"containerd does not answer: {node.part('containerd').log}")
    for part in node.parts:
        part.start()


def _end_node(node: Node) -> None:
    for part in reversed(node.parts):
        part.stop(signal.SIGKILL)
    cgroups.end(node.name)
    _end_processes(node)


def _end_processes(node: Node, but: int | None = None) -> None:
    """Ends the containers' shims: they are in no group of the node, but in its mount namespace."""
    holder = node.part("holder").pid
    if holder is not None:
        namespace = Path(f"/proc/{holder}/ns/mnt").readlink()
        for pid in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
            with contextlib.suppress(FileNotFoundError, PermissionError, ProcessLookupError):
                if pid != but and Path(f"/proc/{pid}/ns/mnt").readlink() == namespace:
                    started = start_time(pid)
                    os.kill(pid, signal.SIGKILL)
                    if not gone(pid, started, STOP_SECONDS):
                        raise RuntimeError(f"process {pid} of {node.name} does not end; see /proc/{pid}/stack")


def _wait_ready() -> None:
    with step("all parts are ready"):

        def ready() -> bool:
            query = "jsonpath={range .items[*]}{.status.conditions[?(@.type=='Ready')].status} {end}"
            return kubectl("get", "nodes", "-o", query, check=False).split() == ["True"] * len(NODES)

        wait(ready, READY_SECONDS, lambda: f"nodes are not Ready: {kubectl('get', 'nodes')}Logs: {STATE / 'logs'}")
        account = ("get", "serviceaccount", "default", "--output=name")
        wait(
            lambda: bool(kubectl(*account, check=False)),
            READY_SECONDS,
            lambda: f"the controller manager makes no service accounts; its log is {CONTROL_PLANE[2].log}",
        )


def _runtimes_answer() -> bool:
    return all(map(_answers, NODES))


def _answers(node: Node) -> bool:
    try:
        return bool(node.ctr("version"))
    except RuntimeError:
        return False


def _bridge_exists() -> bool:
    return Path("/sys/class/net", BRIDGE).exists()
