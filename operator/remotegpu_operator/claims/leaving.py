"""Pods that are being deleted: each is checked again when its node goes, and when its time is over."""

import datetime
from collections.abc import Callable
from typing import Final

from remotegpu_operator.builders import leaving
from remotegpu_operator.builders.leaving import Machine, Standing
from remotegpu_operator.cluster.cache import Cache
from remotegpu_operator.cluster.kube import NODES, Api, ApiError, Object

# A timer may come a moment early.
_AFTER_SECONDS: Final = 0.1


class Leaving:
    def __init__(self, api: Api, nodes: Cache, pods: Cache, look: Callable[[str, float], None]) -> None:
        """`look` queues the pod with a uid for a check after so many seconds."""
        self._api = api
        self._nodes = nodes
        self._pods = pods
        self._look = look
        # Nodes that the API server does not have. A node that only the cache lacks may be a new one.
        self._gone: set[str] = set()

    def over(self, pod: Object) -> bool:
        """Whether the pod needs its share no more, as far as is known."""
        return self._standing(pod).over

    async def look(self, pod: Object) -> Standing:
        """Returns the pod's standing, after asking the API server for its node if that is unknown."""
        name = leaving.node_name(pod)
        if leaving.being_deleted(pod) and name and self._node(name) is None and name not in self._gone:
            try:
                await self._api.get(NODES, None, name)
            except ApiError as error:
                if not error.gone:
                    raise
                self._gone.add(name)
        found = self._standing(pod)
        if found.until is not None:
            left = found.until - datetime.datetime.now(datetime.UTC)
            self._look(pod["metadata"]["uid"], left.total_seconds() + _AFTER_SECONDS)
        return found

    def node_changed(self, name: str) -> None:
        """Checks pods on a node that came, went, or has other taints."""
        self._gone.discard(name)
        for pod in self._pods:
            if leaving.being_deleted(pod) and leaving.node_name(pod) == name:
                self._look(pod["metadata"]["uid"], 0.0)

    def _standing(self, pod: Object) -> Standing:
        name = leaving.node_name(pod)
        node = self._node(name)
        unsure = node is None and name not in self._gone
        machine = Machine.THERE if unsure else leaving.machine_of(node)
        return leaving.standing(pod, machine, datetime.datetime.now(datetime.UTC))

    def _node(self, name: str) -> Object | None:
        return self._nodes.named("", name)
