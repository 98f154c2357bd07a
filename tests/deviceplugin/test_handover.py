"""Two plugins on one node, as while a DaemonSet is updated: the kubelet must never find the devices unhealthy."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.plugin_node import SECONDS, Node
from support.system import free_port, until

from remotegpu.api.kubernetes import CLIENT, LOCAL_SOCKETS, MILLI
from remotegpu_deviceplugin._generated import deviceplugin_pb2 as messages
from remotegpu_deviceplugin.devices import Pools
from remotegpu_deviceplugin.memory import remember
from remotegpu_deviceplugin.node import MEMORY

# No API server is needed: the node remembers the pools.
KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: nowhere
clusters: [{name: nowhere, cluster: {server: "https://127.0.0.1:1"}}]
contexts: [{name: nowhere, context: {cluster: nowhere, user: nobody}}]
users: [{name: nobody, user: {token: none}}]
"""
REQUEST = messages.AllocateRequest(container_requests=[messages.ContainerAllocateRequest(devices_ids=["0"])])


@pytest.fixture
def nowhere(node: Node) -> Path:
    node.files.mkdir()
    remember(node.files / MEMORY, Pools(3000, software=True))
    file = node.files.parent / "kubeconfig"
    file.write_text(KUBECONFIG)
    return file


def registered(node: Node, times: int) -> None:
    """Waits until each resource is registered this often, and the kubelet has received as many lists of it."""
    names = [MILLI, CLIENT, LOCAL_SOCKETS]
    until(
        lambda: all(len(node.kubelet.heard.get(name, [])) >= times for name in names),
        SECONDS,
        f"{times} lists each, not {node.kubelet.heard}; {node.log.read_text()}",
    )


def other() -> str:
    return f"127.0.0.1:{free_port()}"


@contextlib.contextmanager
def beside_its_successor(node: Node, kubeconfig: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a plugin, waits until it is registered, and starts a second one."""
    with node.run(kubeconfig) as first:
        registered(node, 1)
        with node.run(kubeconfig, other()):
            registered(node, 2)
            yield first


def test_updates_one_after_the_other_leave_no_gap(node: Node, nowhere: Path) -> None:
    with node.run(nowhere) as first:
        registered(node, 1)
        with node.run(nowhere, other()) as second:
            registered(node, 2)
            assert len({each.endpoint for each in node.kubelet.registrations}) == 6, "each has sockets of its own"
            first.terminate()
            assert first.wait(SECONDS) == 0
            # The second one inherits the first one's state of the kubelet, and hands it on.
            with node.run(nowhere, other()):
                registered(node, 4)
                second.terminate()
                assert second.wait(SECONDS) == 0
                registered(node, 5)
                assert node.kubelet.plugin(MILLI).Allocate(REQUEST).container_responses
                assert node.kubelet.plugin(CLIENT).Allocate(REQUEST).container_responses
                assert (node.kubelet.ended, node.kubelet.unhealthy) == ([], [])
            # There is no successor to hand over to any more.
            until(
                lambda: set(node.kubelet.unhealthy) == {CLIENT, LOCAL_SOCKETS, MILLI},
                SECONDS,
                "the kubelet knows that it ended",
            )
    assert [path.name for path in node.plugins.iterdir()] == ["kubelet.sock"]


def test_one_that_is_to_end_serves_until_its_successor_is_there(node: Node, nowhere: Path) -> None:
    """A pod that was deleted by force: its replacement starts while it ends."""
    with node.run(nowhere, patience=SECONDS) as first:
        registered(node, 1)
        first.terminate()
        node.logged("waits for its successor")
        assert node.kubelet.plugin(MILLI).Allocate(REQUEST).container_responses
        with node.run(nowhere, other()):
            assert first.wait(SECONDS) == 0
            assert node.kubelet.unhealthy == []
            assert node.kubelet.plugin(MILLI).Allocate(REQUEST).container_responses


def test_one_that_is_killed_beside_its_successor_is_made_good_at_once(node: Node, nowhere: Path) -> None:
    """The kubelet closes the successor's connections then."""
    with beside_its_successor(node, nowhere) as first:
        first.send_signal(signal.SIGKILL)
        until(lambda: set(node.kubelet.unhealthy) == {CLIENT, LOCAL_SOCKETS, MILLI}, SECONDS, "the kubelet sees an end")
        until(lambda: all(map(node.kubelet.healthy, (MILLI, CLIENT, LOCAL_SOCKETS))), SECONDS, "all are healthy again")
        assert node.kubelet.plugin(MILLI).Allocate(REQUEST).container_responses


def test_a_kubelet_that_starts_again_hears_of_the_successor_alone(node: Node, nowhere: Path) -> None:
    """The successor inherited state of the old kubelet, which counts for nothing."""
    with beside_its_successor(node, nowhere) as first:
        first.terminate()
        assert first.wait(SECONDS) == 0
        node.kubelet.stop()
        before = len(node.kubelet.registrations)
        node.kubelet.heard.clear()
        node.kubelet.unhealthy.clear()
        node.kubelet.start()
        registered(node, 1)
        assert len(node.kubelet.registrations) == before + 3
        assert node.kubelet.unhealthy == []


@pytest.mark.parametrize("name", ["remotegpu-milli-dead.sock", "remotegpu-milli.sock"])
def test_sockets_that_nobody_serves_are_removed(node: Node, nowhere: Path, name: str) -> None:
    leave_socket(node.plugins / name)
    leave_socket(node.plugins / "another-vendors.sock")
    with node.run(nowhere):
        registered(node, 1)
        assert not (node.plugins / name).exists()
        assert (node.plugins / "another-vendors.sock").exists()


def leave_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    os.utime(path, (0, 0))
