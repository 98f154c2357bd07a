"""The objects that the operator follows in all namespaces. Each kind is read once."""

from dataclasses import dataclass, field, fields
from typing import Final

from remotegpu.api.kubernetes import API_VERSION, CLAIMS, POD_LABEL, POD_LABEL_VALUE, POOLS
from remotegpu_operator.cluster.kube import NODES, PODS, Object, Resource
from remotegpu_operator.cluster.store import Store

GPUPOOLS: Final = Resource(API_VERSION, POOLS, "GPUPool")
GPUCLAIMS: Final = Resource(API_VERSION, CLAIMS, "GPUClaim")
PRIORITY_CLASSES: Final = Resource("scheduling.k8s.io/v1", "priorityclasses", "PriorityClass")
QUOTAS: Final = Resource("v1", "resourcequotas", "ResourceQuota")


def _used_of_node(node: Object) -> Object:
    """Returns only the parts of a node that the operator uses. The rest, such as the images, is large."""
    metadata, status = node["metadata"], node.get("status") or {}
    return {
        "metadata": {key: metadata[key] for key in ("name", "uid", "resourceVersion", "labels") if key in metadata},
        "spec": {"taints": (node.get("spec") or {}).get("taints")},
        "status": {"capacity": status.get("capacity"), "allocatable": status.get("allocatable")},
    }


def same_node(before: Object, now: Object) -> bool:
    """Whether a node's labels, taints and amounts are the same. A kubelet writes its node often without a change."""
    if before["metadata"].get("labels") != now["metadata"].get("labels"):
        return False
    return bool(before["spec"] == now["spec"] and before["status"] == now["status"])


@dataclass(frozen=True)
class Stores:
    nodes: Store = field(default_factory=lambda: Store(NODES, keep=_used_of_node))
    classes: Store = field(default_factory=lambda: Store(PRIORITY_CLASSES))
    quotas: Store = field(default_factory=lambda: Store(QUOTAS))
    pools: Store = field(default_factory=lambda: Store(GPUPOOLS))
    claims: Store = field(default_factory=lambda: Store(GPUCLAIMS))
    # The pods with a share.
    pods: Store = field(default_factory=lambda: Store(PODS, labels=f"{POD_LABEL}={POD_LABEL_VALUE}"))

    def all(self) -> list[Store]:
        return [getattr(self, each.name) for each in fields(self)]

    def of_kopf(self) -> list[Store]:
        """Returns the stores that kopf's events fill: all but that of claims."""
        return [each for each in self.all() if each is not self.claims]
