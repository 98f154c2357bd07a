"""What is written as it was built. A digest of itself goes along, by which one that is as it should be is known without
a write."""

import hashlib
import json
from typing import Final

from remotegpu.api.kubernetes import STATUS_PREFIX
from remotegpu_operator.cluster.kube import Api, ApiError, Object, Resource

_MANIFEST: Final = f"{STATUS_PREFIX}manifest"


class Manifests:
    """Objects of one namespace that nobody watches. Each is written once by each leader and whenever it should be
    another; that somebody deleted it is seen when it is kept the next time."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api = api
        self._namespace = namespace
        self._written: set[str] = set()

    async def keep(self, resource: Resource, body: Object) -> None:
        body = marked(body)
        key = f"{resource.plural}/{body['metadata']['name']}/{mark(body)}"
        if key in self._written:
            try:
                await self._api.get(resource, self._namespace, body["metadata"]["name"])
                return
            except ApiError as error:
                if not error.gone:
                    raise
        await self._api.apply(resource, self._namespace, body)
        self._written.add(key)


def marked(body: Object) -> Object:
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]
    metadata = body["metadata"] | {"annotations": (body["metadata"].get("annotations") or {}) | {_MANIFEST: digest}}
    return body | {"metadata": metadata}


def mark(body: Object) -> str:
    return str((body["metadata"].get("annotations") or {}).get(_MANIFEST, ""))
