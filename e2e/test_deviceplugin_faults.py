"""A device plugin that dies and a kubelet that starts again, while pods run and start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster.lifecycle import NODES, part
from support import processes
from support.checker import SYSTEM, Checker
from support.installation import Installation
from support.kubectl import Kubectl
from support.manifests import deployment, job, pod, program
from support.namespace import Namespace
from support.system import until

from remotegpu.api.kubernetes import CLIENT, MILLI
from remotegpu_deviceplugin.files import CHECKPOINT, used_versions
from remotegpu_deviceplugin.kubelet import FOLDER

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

SETTLED = 60
FILES = Path("/var/lib/remotegpu/client")


@pytest.fixture(autouse=True)
def sound(installation: Installation, checker: Checker) -> Iterator[None]:
    installation.wait_until_ready(SETTLED)
    yield
    installation.wait_until_ready(SETTLED)
    checker.settled(SETTLED)


def offered(kubectl: Kubectl) -> dict[str, tuple[int, int]]:
    """Returns each node's allocatable milli and clients."""
    nodes = {node["metadata"]["name"]: node["status"]["allocatable"] for node in kubectl.all("nodes")}
    return {name: (quantity(found.get(MILLI, "0")), quantity(found.get(CLIENT, "0"))) for name, found in nodes.items()}


def quantity(text: str) -> int:
    return int(text[:-1]) * 1000 if text.endswith("k") else int(text)


def kill_plugins(installation: Installation) -> None:
    for plugin in installation.pods("deviceplugin"):
        processes.kill(plugin)


def restart_kubelets() -> None:
    for node in NODES:
        part(f"kubelet-{node.name}").kill()
    for node in NODES:
        part(f"kubelet-{node.name}").start()


def test_every_node_offers_twice_the_pools_and_the_clients(kubectl: Kubectl, checker: Checker) -> None:
    gpus = sum(len(truth.shareable) for truth in checker.truths())
    for milli, clients in offered(kubectl).values():
        # Never less; more where there were more GPUs before.
        assert milli >= 2 * 1000 * gpus
        assert clients == 1000


def test_plugins_that_die_while_pods_start_delay_them_only(namespace: Namespace, installation: Installation) -> None:
    """The Deployment makes a new pod for one that the kubelet turns away in between."""
    namespace.create(deployment("many", program("hold.py", "--mib", "1"), replicas=8, fraction="0.1"))
    for _ in range(3):
        kill_plugins(installation)

    def available() -> bool:
        found = namespace.get("deployment", "many")
        return found is not None and found["status"].get("availableReplicas") == 8

    until(available, 120, "all eight run")
    namespace("delete", "deployment", "many", "--wait=false")


def jobs(namespace: Namespace, prefix: str, count: int) -> None:
    """Starts Jobs with one attempt each: a pod that a kubelet turns away is a failed Job."""
    namespace.create(*(job(f"{prefix}-{number}", ["true"], fraction="0.01") for number in range(count)))


def finished(namespace: Namespace, count: int) -> None:
    def all_done() -> bool:
        found = [each["status"] for each in namespace.all("jobs")]
        return bool(sum(each.get("succeeded", 0) + each.get("failed", 0) for each in found) == count)

    until(all_done, 240, f"{count} Jobs have ended")


def turned_away(namespace: Namespace) -> list[str]:
    statuses = {each["metadata"]["name"]: each["status"] for each in namespace.all("pods")}
    return [f"{name}: {each.get('message')}" for name, each in statuses.items() if each["phase"] == "Failed"]


@pytest.mark.timeout(600)
def test_updates_turn_no_pod_away(namespace: Namespace, kubectl: Kubectl) -> None:
    """Each update gives every node another plugin while pods start there."""
    made = 0
    while made < 100:
        kubectl("rollout", "restart", "daemonset/remotegpu-deviceplugin", "-n", SYSTEM)
        jobs(namespace, f"early-{made}", 13)
        kubectl("rollout", "status", "daemonset/remotegpu-deviceplugin", "-n", SYSTEM, "--timeout=120s", seconds=130)
        jobs(namespace, f"late-{made}", 12)
        made += 25
    finished(namespace, made)
    assert turned_away(namespace) == []


@pytest.mark.timeout(600)
def test_plugins_deleted_by_force_turn_no_pod_away(
    namespace: Namespace, installation: Installation, kubectl: Kubectl
) -> None:
    """A deleted plugin serves until its successor does, and gates stay while a node has none."""
    made = 0
    for number in range(20):
        plugins = sorted(installation.pods("deviceplugin"), key=lambda each: str(each["spec"].get("nodeName")))
        name = plugins[number % len(plugins)]["metadata"]["name"]
        jobs(namespace, f"before-{number}", 2)
        kubectl("delete", "pod", name, "-n", SYSTEM, "--force", "--grace-period=0")
        jobs(namespace, f"after-{number}", 2)
        made += 4
        installation.wait_until_ready(SETTLED)
    finished(namespace, made)
    assert turned_away(namespace) == []


def test_a_container_finds_the_client_again_after_kubelet_and_plugin(
    namespace: Namespace, installation: Installation, kubectl: Kubectl
) -> None:
    """The container starts again with what its pod got at first; no plugin is asked a second time."""
    made = pod("again", program("hold.py", "--mib", "1"), fraction="0.1")
    made["spec"]["restartPolicy"] = "Always"
    namespace.create(made)
    namespace.wait_for_line("again", "round 1")
    running = namespace.get("pod", "again")
    assert running is not None
    restart_kubelets()
    kill_plugins(installation)
    # A kubelet takes its running pods back before it starts new ones.
    new = pod("new", ["true"])
    new["spec"]["nodeSelector"] = {"kubernetes.io/hostname": running["spec"]["nodeName"]}
    namespace.run(new)
    installation.wait_until_ready(SETTLED)
    assert namespace.phase("again") == "Running"
    assert processes.restarts(kubectl, running) == 0, "nobody has disturbed it"

    processes.kill(running)
    until(lambda: processes.restarts(kubectl, running) == 1, SETTLED, "its container starts again")
    namespace.wait_for_line("again", "round 1")
    namespace.delete("pod", "again", now=True)


def test_the_kubelet_remembers_which_files_a_pod_was_given(namespace: Namespace, tmp_path: Path) -> None:
    """Shows why old versions are kept. Reads the kubelet's own file, whose format is not guaranteed."""
    namespace.create(pod("holds", program("hold.py", "--mib", "1"), fraction="0.1"))
    namespace.wait_for_line("holds", "round 1")
    found = namespace.get("pod", "holds")
    node = next(node for node in NODES if found is not None and node.name == found["spec"]["nodeName"])
    checkpoint = tmp_path / CHECKPOINT
    checkpoint.write_text(node.run("cat", str(FOLDER / CHECKPOINT)))
    mounts = Path(f"/proc/{processes.main_process(found or {}).pid}/mountinfo").read_text()
    (version,) = {line.split(f"{FILES}/")[1].split("/")[0] for line in mounts.splitlines() if f"{FILES}/" in line}
    assert version in used_versions(checkpoint, FILES)
    namespace.delete("pod", "holds", now=True)
