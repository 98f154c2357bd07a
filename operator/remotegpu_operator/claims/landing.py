"""Watches nodes and their device plugins, and decides whether a pod's scheduling gate may be removed now."""

import json
from collections.abc import Callable
from typing import Final

from remotegpu.api.kubernetes import COMPONENT_LABEL, NAME_LABEL
from remotegpu_operator.builders import landing
from remotegpu_operator.cluster.cache import Cache
from remotegpu_operator.cluster.kube import NODES, PODS, Api, Object

_MOST_ANSWERS: Final = 1000
_PLUGINS: Final = f"{NAME_LABEL}=remotegpu,{COMPONENT_LABEL}=deviceplugin"


class Landing:
    def __init__(self, api: Api, namespace: str, on_change: Callable[[], None], on_node: Callable[[str], None]) -> None:
        """`on_change` is called after each change of a device plugin or a node.

        `on_node` is called with the name of each changed node. A node has changed if it was added or removed, or if its
        labels, its taints or its resource for GPU shares changed.
        """
        self._on_change = on_change
        self._on_node = on_node
        self._seen: dict[str, landing.Node] = {}
        # None means that it must be built again.
        self._known: landing.Plugins | None = None
        # A cache of answers by the pods' requirements on a node. Each change of a node or plugin clears it.
        self._answers: dict[str, str] = {}
        self.nodes = Cache(api, NODES, self._node_changed, keep=_without_images)
        self._plugins = Cache(api, PODS, self._plugin_changed, namespace=namespace, labels=_PLUGINS)
        self.caches = (self.nodes, self._plugins)

    def why_held_back(self, pod: Object) -> str:
        """Returns why the pod's gate must stay now; empty if it may be removed."""
        if self._known is None:
            self._known = landing.Plugins.of(self._plugins)
        asked = landing.asked_of_node(pod)
        key = json.dumps(asked)
        answer = self._answers.get(key)
        if answer is None:
            answer = landing.why_held_back(asked, self._seen.values(), self._known)
            if len(self._answers) >= _MOST_ANSWERS:
                self._answers.clear()
            self._answers[key] = answer
        return answer

    def _node_changed(self, old: Object | None, new: Object | None) -> None:
        thing = new or old
        assert thing is not None
        name = thing["metadata"]["name"]
        before = self._seen.pop(name, None)
        if new is not None:
            self._seen[name] = landing.Node.of(new)
        if self._seen.get(name) != before:
            self._answers.clear()
            self._on_change()
            self._on_node(name)

    def _plugin_changed(self, *_: Object | None) -> None:
        self._known = None
        self._answers.clear()
        self._on_change()


def _without_images(node: Object) -> Object:
    """Returns only the parts of a node that this module and `leaving` use. The rest, such as the images, is large."""
    metadata, status = node["metadata"], node.get("status") or {}
    return {
        "metadata": {key: metadata[key] for key in ("name", "uid", "resourceVersion", "labels") if key in metadata},
        "spec": {"taints": (node.get("spec") or {}).get("taints")},
        "status": {"capacity": status.get("capacity"), "allocatable": status.get("allocatable")},
    }
