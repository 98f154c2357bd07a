"""Watches device plugins, and decides by them and the nodes whether a pod's scheduling gate may be removed now."""

import json
from collections.abc import Callable
from typing import Final

from remotegpu.api.kubernetes import COMPONENT_LABEL, NAME_LABEL
from remotegpu_operator.builders import landing
from remotegpu_operator.cluster.cache import Cache
from remotegpu_operator.cluster.kube import PODS, Api, Object
from remotegpu_operator.cluster.store import Store

_MOST_ANSWERS: Final = 1000
_PLUGINS: Final = f"{NAME_LABEL}=remotegpu,{COMPONENT_LABEL}=deviceplugin"


class Landing:
    def __init__(self, api: Api, namespace: str, nodes: Store, on_change: Callable[[], None]) -> None:
        """`on_change` is called after each change of a device plugin or a node."""
        self._on_change = on_change
        self._nodes = nodes
        # None means that it must be built again.
        self._known: tuple[list[landing.Node], landing.Plugins] | None = None
        # A cache of answers by the pods' requirements on a node. Each change of a node or plugin clears it.
        self._answers: dict[str, str] = {}
        self.plugins = Cache(api, PODS, lambda _before, _now: self.changed(), namespace=namespace, labels=_PLUGINS)

    def why_held_back(self, pod: Object) -> str:
        """Returns why the pod's gate must stay now; empty if it may be removed."""
        if self._known is None:
            self._known = list(map(landing.Node.of, self._nodes)), landing.Plugins.of(self.plugins)
        asked = landing.asked_of_node(pod)
        key = json.dumps(asked)
        answer = self._answers.get(key)
        if answer is None:
            answer = landing.why_held_back(asked, *self._known)
            if len(self._answers) >= _MOST_ANSWERS:
                self._answers.clear()
            self._answers[key] = answer
        return answer

    def changed(self) -> None:
        """Handles a node or device plugin that was added, removed or changed."""
        self._known = None
        self._answers.clear()
        self._on_change()
