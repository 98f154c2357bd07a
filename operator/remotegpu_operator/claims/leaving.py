"""Follows pods that are being deleted: checks each pod again when its node changes and at the pod's latest end."""

import datetime
from collections.abc import Callable
from typing import Final

from remotegpu_operator.builders import leaving
from remotegpu_operator.builders.leaving import Machine, Standing
from remotegpu_operator.cluster.kube import NODES, Api, ApiError, Object
from remotegpu_operator.cluster.store import Store

# A margin, because a timer may fire a moment early.
_AFTER_SECONDS: Final = 0.1


class Leaving:
    def __init__(self, api: Api, nodes: Store, pods: Store, look: Callable[[str, float], None]) -> None:
        """`look` queues the pod with the given uid for a check after the given seconds."""
        self._api = api
        self._nodes = nodes
        self._pods = pods
        self._look = look
        # Names of nodes that the API server does not have. A node that only the cache does not have may be new.
        self._gone: set[str] = set()

    def over(self, pod: Object) -> bool:
        """Whether the pod no longer needs its share, according to the cache."""
        return self._standing(pod).over

    async def look(self, pod: Object) -> Standing:
        """Returns whether the pod still needs its share, and queues the pod for a check at its latest end.

        If the pod is being deleted and its node is not cached, reads the node from the API server. This raises the
        errors of `Api.get`, except for a missing node.
        """
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
        """Queues the terminating pods on a node that was added, removed or changed."""
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
