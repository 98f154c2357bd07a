"""Applies built objects with a digest of their content in an annotation, so that unchanged objects need no write."""

import hashlib
import json
from typing import Final

from remotegpu.api.kubernetes import STATUS_PREFIX
from remotegpu_operator.cluster.kube import Api, ApiError, Object, Resource

_MANIFEST: Final = f"{STATUS_PREFIX}manifest"


class Manifests:
    """Applies objects of one namespace that are not watched.

    Each leader writes an object once, and again whenever its content changes. `keep` also restores a deleted object.
    """

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
