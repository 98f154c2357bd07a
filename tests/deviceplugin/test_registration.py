"""The plugin with a stand-in kubelet and a real API server."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

import pytest
from google.protobuf.json_format import MessageToDict
from support.apiserver import ApiServer
from support.faultproxy import FaultProxy
from support.plugin_node import SECONDS, Node, set_pool
from support.system import free_port, until

from remotegpu.api.kubernetes import LOCAL
from remotegpu_deviceplugin._generated import deviceplugin_pb2 as messages

MILLI, CLIENT, SOCKETS = "remotegpu/milli", "remotegpu/client", "remotegpu.io/local-sockets"


def test_it_serves_before_it_registers_its_resources(pool: ApiServer, node: Node) -> None:
    with node.run(pool.kubeconfig):
        node.heard(MILLI, 6000)
        node.heard(CLIENT, 1000)
        node.heard(SOCKETS, 100)
        kubelet = node.kubelet
        assert all(kubelet.served_before_registering)
        registered = sorted((r.resource_name, r.version) for r in kubelet.registrations)
        assert registered == [(name, "v1beta1") for name in (SOCKETS, CLIENT, MILLI)]
        assert MessageToDict(kubelet.plugin(MILLI).GetDevicePluginOptions(messages.Empty())) == {}
        assert {device.health for device in kubelet.devices[MILLI]} == {"Healthy"}
        assert node.get("/readyz") == (200, "ok\n")
        assert 'remotegpu_node_devices{resource="remotegpu/milli"} 6000.0' in node.get("/metrics")[1]


def test_what_a_container_gets_does_not_depend_on_its_devices(pool: ApiServer, node: Node) -> None:
    with node.run(pool.kubeconfig):
        node.heard(MILLI, 6000)
        node.heard(CLIENT, 1000)
        request = messages.AllocateRequest(
            container_requests=[
                messages.ContainerAllocateRequest(devices_ids=["0"]),
                messages.ContainerAllocateRequest(devices_ids=["5999", "17"]),
            ]
        )
        first, second = node.kubelet.plugin(MILLI).Allocate(request).container_responses
        request = messages.AllocateRequest(container_requests=[messages.ContainerAllocateRequest(devices_ids=["9"])])
        (third,) = node.kubelet.plugin(CLIENT).Allocate(request).container_responses
        assert first == second == third
        paths = {mount.container_path: Path(mount.host_path) for mount in first.mounts}
        assert paths.pop(LOCAL) == node.files.with_name("local")
        (version,) = {path.relative_to(node.files).parts[0] for path in paths.values()}
        assert (node.files / version / "lib" / "libcuda.so.1").read_text() == "first"


def test_an_appliance_gets_the_folder_of_sockets_alone(pool: ApiServer, node: Node) -> None:
    """To write into, as a mount of the device plugin: it is not a volume of the pod."""
    with node.run(pool.kubeconfig):
        node.heard(SOCKETS, 100)
        request = messages.AllocateRequest(container_requests=[messages.ContainerAllocateRequest(devices_ids=["3"])])
        (given,) = node.kubelet.plugin(SOCKETS).Allocate(request).container_responses
        folder = node.files.with_name("local")
        mount = {"containerPath": LOCAL, "hostPath": str(folder)}
        assert MessageToDict(given) == {"mounts": [mount]}
        assert folder.stat().st_mode & 0o7777 == 0o1777, "nobody removes another one's"


def test_the_kubelet_hears_of_more_and_of_nothing_else(pool: ApiServer, node: Node) -> None:
    with node.run(pool.kubeconfig):
        node.heard(MILLI, 6000)
        set_pool(pool, "more", 1000, "cuda")
        node.heard(MILLI, 8000)
        pool.kubectl("delete", "gpupool", "more")
        set_pool(pool, "plugin", 3001)
        set_pool(pool, "plugin", 5000)
        node.heard(MILLI, 10_000)
        assert node.kubelet.heard == {MILLI: [6000, 8000, 10_000], CLIENT: [1000], SOCKETS: [100]}


def test_a_kubelet_that_starts_again_finds_the_plugin(pool: ApiServer, node: Node) -> None:
    with node.run(pool.kubeconfig):
        for start in (1, 2, 3, 4, 5):
            node.heard(MILLI, 6000)
            node.heard(CLIENT, 1000)
            node.heard(SOCKETS, 100)
            assert len(node.kubelet.registrations) == 3 * start
            node.kubelet.stop()
            until(lambda: node.get("/readyz")[0] == 503, SECONDS, "not ready without a kubelet")
            assert node.get("/healthz")[0] == 200
            node.kubelet.heard.clear()
            node.kubelet.start()


def test_sockets_that_disappear_are_made_again(pool: ApiServer, node: Node) -> None:
    """Some tidying hand, or a kubelet whose own socket was made in the same moment."""
    with node.run(pool.kubeconfig):
        node.heard(MILLI, 6000)
        node.heard(CLIENT, 1000)
        node.kubelet.heard.clear()
        next(node.plugins.glob("remotegpu-milli-*.sock")).unlink()
        node.heard(MILLI, 6000)
        assert [r.resource_name for r in node.kubelet.registrations].count(MILLI) == 2


def test_a_kubelet_that_refuses_is_asked_again_and_its_sentence_is_logged(pool: ApiServer, node: Node) -> None:
    node.kubelet.refusal = "requested API version is not supported by kubelet"
    with node.run(pool.kubeconfig):
        node.logged("remotegpu/milli is not registered: requested API version is not supported by kubelet;")
        until(lambda: len(node.kubelet.registrations) >= 6, SECONDS, "it is asked again")
        assert node.log.read_text().count("remotegpu/milli is not registered") == 1
        resources = "remotegpu/milli, remotegpu/client, remotegpu.io/local-sockets"
        assert node.get("/readyz") == (503, f"the kubelet does not listen for {resources} yet\n")
        node.kubelet.refusal = ""
        node.heard(MILLI, 6000)


def test_a_plugin_before_its_kubelet_waits_for_it(pool: ApiServer, node: Node) -> None:
    node.kubelet.stop()
    with node.run(pool.kubeconfig):
        until(lambda: list(node.plugins.glob("remotegpu-milli-*.sock")), SECONDS, "it serves")
        node.kubelet.start()
        node.heard(MILLI, 6000)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_the_figure_outlives_the_plugin_without_an_api_server(pool: ApiServer, node: Node, how: signal.Signals) -> None:
    with node.run(pool.kubeconfig) as process:
        node.heard(MILLI, 6000)
        node.heard(CLIENT, 1000)
        node.heard(SOCKETS, 100)
        process.send_signal(how)
        process.wait()
    if how is signal.SIGTERM:
        assert process.returncode == 0
        assert [path.name for path in node.plugins.iterdir()] == ["kubelet.sock"]
    until(lambda: sorted(node.kubelet.ended) == [SOCKETS, CLIENT, MILLI], SECONDS, "the kubelet knows that it ended")
    node.kubelet.heard.clear()
    nowhere = node.plugins.parent / "kubeconfig"
    nowhere.write_text(pool.kubeconfig.read_text().replace(pool.url, "https://127.0.0.1:1"))
    with node.run(nowhere):
        node.heard(MILLI, 6000)
        node.logged("gpupools cannot be read, what was last known stays")
        assert node.kubelet.heard[MILLI] == [6000]


def test_pools_that_were_never_seen_are_not_advertised(pool: ApiServer, node: Node) -> None:
    """A zero would reach the scheduler."""
    nowhere = node.plugins.parent / "kubeconfig"
    nowhere.write_text(pool.kubeconfig.read_text().replace(pool.url, "https://127.0.0.1:1"))
    with node.run(nowhere):
        node.heard(CLIENT, 1000)
        node.heard(SOCKETS, 100)
        node.logged("gpupools cannot be read")
        assert sorted(r.resource_name for r in node.kubelet.registrations) == [SOCKETS, CLIENT]
        assert node.get("/readyz") == (503, "the kubelet does not listen for remotegpu/milli yet\n")


def test_an_api_server_that_goes_away_changes_nothing_and_its_news_are_heard_later(pool: ApiServer, node: Node) -> None:
    port = int(pool.url.rsplit(":", 1)[1])
    through = node.plugins.parent / "kubeconfig"
    listening = free_port()
    through.write_text(pool.kubeconfig.read_text().replace(pool.url, f"https://127.0.0.1:{listening}"))
    with contextlib.ExitStack() as proxied, node.run(through):
        proxied.enter_context(FaultProxy("127.0.0.1", port, listen_port=listening))
        node.heard(MILLI, 6000)
        proxied.close()
        node.logged("gpupools cannot be read, what was last known stays")
        set_pool(pool, "plugin", 4000)
        proxied.enter_context(FaultProxy("127.0.0.1", port, listen_port=listening))
        node.heard(MILLI, 8000)
        assert node.kubelet.heard[MILLI] == [6000, 8000]


def test_a_huge_pool_is_cut_to_what_the_kubelet_takes(pool: ApiServer, node: Node) -> None:
    set_pool(pool, "plugin", 1_000_000)
    with node.run(pool.kubeconfig):
        node.heard(MILLI, 217_303)
        node.logged("the kubelet takes at most 217303 devices in one message, so this node advertises 217303 of")


def test_a_new_release_keeps_the_files_of_a_pod_that_runs(pool: ApiServer, node: Node) -> None:
    with node.run(pool.kubeconfig):
        node.heard(CLIENT, 1000)
    (old,) = (path for path in node.files.iterdir() if path.is_dir())
    node.write_client("second")
    with node.run(pool.kubeconfig):
        # This kubelet has no memory of its pods, so nothing may be removed.
        node.logged("old versions of the client's files stay")
        assert (old / "lib" / "libcuda.so.1").read_text() == "first"
        assert len([path for path in node.files.iterdir() if path.is_dir()]) == 2
