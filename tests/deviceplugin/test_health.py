"""Devices of pods whose GPU failed are unhealthy at the kubelet, which reports it in the pods' status."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.apiserver import ApiServer
from support.kubelet import CHECKPOINT
from support.plugin_node import SECONDS, Node
from support.system import ROOT, until

from remotegpu.api.claims import ClaimStatus, Phase, PodReference, Reason
from remotegpu_deviceplugin.devices import MESSAGE_LIMIT, MOST_DEVICES, listing
from remotegpu_deviceplugin.health import devices_of

MILLI, CLIENT = "remotegpu/milli", "remotegpu/client"


def remember(path: Path, *entries: tuple[str, str, dict[str, list[str]]]) -> Path:
    """Writes a kubelet's checkpoint of its devices: the pod's uid, the resource, and ids by NUMA node."""
    found = [
        {"PodUID": uid, "ContainerName": "c", "ResourceName": name, "DeviceIDs": ids} for uid, name, ids in entries
    ]
    path.write_text(json.dumps({"Data": {"PodDeviceEntries": found or None, "RegisteredDevices": {}}, "Checksum": 1}))
    return path


def test_the_devices_of_a_pod(tmp_path: Path) -> None:
    entries = [
        ("one", MILLI, {"-1": ["1", "2"]}),
        ("one", MILLI, {"0": ["3"], "1": ["4"]}),
        ("one", "other/gpu", {"-1": ["9"]}),
        ("two", MILLI, {"-1": ["5"]}),
        ("two", CLIENT, {"-1": ["5"]}),
    ]
    path = remember(tmp_path / "checkpoint", *entries)
    assert devices_of(path, {"one"}) == {MILLI: {"1", "2", "3", "4"}, "other/gpu": {"9"}}
    assert devices_of(path, {"two", "none"}) == {MILLI: {"5"}, CLIENT: {"5"}}
    assert devices_of(path, set()) == {}


@pytest.mark.parametrize("content", [None, "", "[]", '{"Data": 3}', '{"Data": {"PodDeviceEntries": [{}]}}'])
def test_what_is_not_understood_makes_nothing_unhealthy(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "checkpoint"
    if content is not None:
        path.write_text(content)
    assert devices_of(path, {"one"}) == {}


def test_ids_that_are_not_offered_are_not_told_of() -> None:
    told = {device.ID: device.health for device in listing(3, frozenset({"1", "7"})).devices}
    assert told == {"0": "Healthy", "1": "Unhealthy", "2": "Healthy"}


def test_the_largest_list_fits_whatever_is_unhealthy() -> None:
    everything = frozenset(map(str, range(MOST_DEVICES)))
    devices = listing(MOST_DEVICES, everything)
    assert devices.ByteSize() <= MESSAGE_LIMIT
    assert sum(device.health == "Unhealthy" for device in devices.devices) > 32_000, "more than pods of a node have"


@pytest.fixture
def claims(pool: ApiServer) -> Iterator[ApiServer]:
    pool.kubectl("apply", "--server-side", "-f", str(ROOT / "crds" / "gpuclaims.yaml"))
    pool.kubectl("wait", "--for=condition=Established", "crd/gpuclaims.remotegpu.io", "--timeout=30s")
    pool.kubectl("create", "namespace", "health")
    yield pool
    pool.kubectl("delete", "gpuclaims", "--all", "-n", "health")


def set_claim(server: ApiServer, name: str, reason: Reason, *pods: str) -> None:
    consumers = tuple(PodReference(f"pod-{uid}", uid) for uid in pods)
    status = ClaimStatus(phase=Phase.ALLOCATED, reason=reason, message="by a test", consumers=consumers)
    api = "remotegpu.io/v1alpha1"
    metadata = {"name": name, "namespace": "health"}
    server.apply({"apiVersion": api, "kind": "GPUClaim", "metadata": metadata, "spec": {"fraction": "0.25"}})
    patch = json.dumps({"status": status.to_object()})
    server.kubectl("patch", "gpuclaim", name, "-n", "health", "--subresource=status", "--type=merge", "-p", patch)


def test_the_kubelet_learns_which_devices_have_a_gpu_that_failed(node: Node, claims: ApiServer) -> None:
    def unhealthy() -> set[tuple[str, str]]:
        listed = node.kubelet.devices
        return {(name, each.ID) for name in listed for each in listed[name] if each.health == "Unhealthy"}

    set_claim(claims, "well", Reason.ALLOCATED, "a")
    set_claim(claims, "failed", Reason.GPU_UNHEALTHY, "b", "c")
    entries = [("a", MILLI, {"-1": ["1"]}), ("b", MILLI, {"-1": ["2", "3"]})]
    remember(node.plugins / CHECKPOINT, *entries)
    with node.run(claims.kubeconfig):
        node.heard(MILLI, 6000)
        until(lambda: unhealthy() == {(MILLI, "2"), (MILLI, "3")}, SECONDS, "those of its pods on this node")
        # A pod that starts later, and only uses the claim.
        remember(node.plugins / CHECKPOINT, *entries, ("c", CLIENT, {"-1": ["7"]}))
        until(lambda: (CLIENT, "7") in unhealthy(), SECONDS, "also of a pod that came later")
        set_claim(claims, "failed", Reason.ALLOCATED, "b", "c")
        until(lambda: not unhealthy(), SECONDS, "the GPU is well again")
        assert node.kubelet.heard[MILLI][-1] == 6000, "the figure stays"
        set_claim(claims, "well", Reason.GPU_UNHEALTHY, "a")
        until(
            lambda: unhealthy() == {(MILLI, "1")}, 5, "another claim, before ten seconds of its GPU's failure are over"
        )
        claims.kubectl("delete", "gpuclaim", "well", "-n", "health")
        until(lambda: not unhealthy(), SECONDS, "it is gone")
