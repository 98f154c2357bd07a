"""A client of the API server: objects are dicts, every call has a timeout, and a write needs the Lease.

A hundred claims may arrive in a second, so the client does not convert JSON to model classes. The package `kubernetes`
only reads the configuration.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

import aiohttp
from kubernetes.aio import client as kubernetes_client
from kubernetes.aio import config as kubernetes_config

from remotegpu_operator import metrics

Object = dict[str, Any]

_CALL_SECONDS: Final = 10.0
_CONNECT_SECONDS: Final = 3.0
# The time after which the server ends a watch. A watch without data for longer is a dead connection.
WATCH_SECONDS: Final = 45
_WATCH: Final = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=WATCH_SECONDS + 10)
PAGE: Final = 500
_MERGE: Final = "application/merge-patch+json"
_METADATA: Final = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
_APPLY: Final = "application/apply-patch+yaml"
FIELD_MANAGER: Final = "remotegpu-operator"


class ApiError(Exception):
    """The API server answered with an error. The message is the server's."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{message} ({status} {reason})")
        self.status = status
        self.reason = reason

    @property
    def gone(self) -> bool:
        return self.status in {404, 410}

    @property
    def conflict(self) -> bool:
        return self.status == 409


# The errors of a call without an answer: the call may have been executed.
Unanswered = (aiohttp.ClientError, TimeoutError, ConnectionError)


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object. `api` is "v1" or "group/version"."""

    api: str
    plural: str
    kind: str

    @property
    def names(self) -> tuple[str, str, str]:
        """The API group (empty for the core), version and plural."""
        group, _, version = self.api.rpartition("/")
        return group, version, self.plural

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        root = f"/apis/{self.api}" if "/" in self.api else f"/api/{self.api}"
        parts = [root, *(["namespaces", namespace] if namespace else []), self.plural]
        return "/".join([*parts, *(part for part in (name, subresource) if part)])


PODS: Final = Resource("v1", "pods", "Pod")
NODES: Final = Resource("v1", "nodes", "Node")


class Api:
    """A connection pool to the API server, used by `async with`.

    `fence` is called before each write, and raises if this process may not write. `seconds` is the timeout of a call.
    All methods raise ApiError if the server refuses, and one of `Unanswered` if it does not answer.
    """

    def __init__(
        self,
        configuration: Any,
        fence: Callable[[], None] = lambda: None,
        *,
        connections: int = 40,
        seconds: float = _CALL_SECONDS,
    ) -> None:
        self._timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=min(_CONNECT_SECONDS, seconds))
        self._configuration = configuration
        self._fence = fence
        tls = ssl.create_default_context(cafile=configuration.ssl_ca_cert, cadata=configuration.ca_cert_data)
        if configuration.cert_file:
            tls.load_cert_chain(configuration.cert_file, configuration.key_file)
        if not configuration.verify_ssl:
            tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        self.server = configuration.host.rstrip("/")
        # Proxies of the environment are not used. The buffer must hold the largest object, which is one line of a
        # watch.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=connections, ssl=tls), read_bufsize=1 << 22
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()
        # aiohttp needs this pause: TLS connections close a moment later.
        await asyncio.sleep(0.25)

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Object:
        return await self._call("GET", resource, resource.path(namespace, name))

    async def list_as(self, token: str, resource: Resource, namespace: str, fields: str) -> list[Object]:
        """Lists at most one page of the objects that a field selector selects, with the rights of a user's token."""
        query = {"limit": str(PAGE), "fieldSelector": fields}
        page = await self._call("GET", resource, resource.path(namespace), query, token=token)
        return page.get("items") or []

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        labels: str = "",
        accept: str = "application/json",
    ) -> tuple[list[Object], str]:
        """Lists all objects, page by page. Returns them, and the version from which a watch continues."""
        items: list[Object] = []
        query = {"limit": str(PAGE)} | ({"labelSelector": labels} if labels else {})
        while True:
            page = await self._call("GET", resource, resource.path(namespace), query, accept=accept)
            items += page.get("items") or []
            metadata = page["metadata"]
            if not metadata.get("continue"):
                return items, metadata["resourceVersion"]
            query["continue"] = metadata["continue"]

    async def uids(self, resource: Resource, labels: str = "") -> tuple[set[str], str]:
        """Lists only the metadata of all objects. Returns their uids, and the version of the list."""
        items, version = await self.list(resource, labels=labels, accept=_METADATA)
        return {item["metadata"]["uid"] for item in items}, version

    async def watch(
        self, resource: Resource, version: str, namespace: str | None = None, labels: str = ""
    ) -> AsyncIterator[Object]:
        """Yields the events after `version` until the server ends the stream.

        Raises an ApiError with `gone` if the version is too old.
        """
        query = {"watch": "1", "resourceVersion": version, "allowWatchBookmarks": "true"}
        query |= {"timeoutSeconds": str(WATCH_SECONDS)} | ({"labelSelector": labels} if labels else {})
        url = self.server + resource.path(namespace)
        async with self._session.get(url, params=query, headers=await self._headers(), timeout=_WATCH) as response:
            metrics.API_CALLS.labels("WATCH", resource.plural, response.status).inc()
            if response.status >= 400:
                raise await _error(response)
            try:
                async for line in response.content:
                    event = _event(line)
                    if event["type"] == "ERROR":
                        status = event["object"]
                        raise ApiError(status.get("code", 500), status.get("reason", ""), status.get("message", ""))
                    yield event
            finally:
                # Abort instead of a close: the close of a TLS connection might take longer than the event loop lives.
                if response.connection is not None and response.connection.transport is not None:
                    response.connection.transport.abort()

    async def create(self, resource: Resource, namespace: str | None, body: Object) -> Object:
        return await self._call("POST", resource, resource.path(namespace), {}, body)

    async def token(self, accounts: Resource, namespace: str, name: str, request: Object) -> str:
        """Requests a token of a service account (TokenRequest). It changes no object, so it works without the Lease."""
        answer = await self._call("POST", accounts, accounts.path(namespace, name, "token"), {}, request, fenced=False)
        token: str = answer["status"]["token"]
        return token

    async def patch(
        self, resource: Resource, namespace: str | None, name: str, body: Object, subresource: str | None = None
    ) -> Object:
        """Applies a merge patch. With metadata.resourceVersion in `body` it fails if the object has changed since."""
        return await self._call("PATCH", resource, resource.path(namespace, name, subresource), {}, body, _MERGE)

    async def apply(self, resource: Resource, namespace: str | None, body: Object) -> Object:
        """Applies the operator's fields of an object by server-side apply."""
        path = resource.path(namespace, body["metadata"]["name"])
        return await self._call("PATCH", resource, path, {"fieldManager": FIELD_MANAGER, "force": "true"}, body, _APPLY)

    async def replace(self, resource: Resource, namespace: str | None, body: Object) -> Object:
        return await self._call("PUT", resource, resource.path(namespace, body["metadata"]["name"]), {}, body)

    async def delete(self, resource: Resource, namespace: str | None, name: str, uid: str) -> None:
        """Deletes the object with this uid. It is not an error if the object is gone or was created again."""
        body = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        try:
            await self._call("DELETE", resource, resource.path(namespace, name), {}, body)
        except ApiError as error:
            if not error.gone and not error.conflict:
                raise

    async def _call(
        self,
        verb: str,
        resource: Resource,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        kind: str = "application/json",
        token: str = "",
        *,
        accept: str = "application/json",
        fenced: bool = True,
    ) -> Object:
        headers = {"Authorization": f"Bearer {token}"} if token else await self._headers()
        data = None if body is None else json.dumps(body)
        if verb != "GET" and fenced:
            # Checked as late as possible: with a pooled connection the request is sent without a further wait.
            self._fence()
        code: int | str = "none"
        try:
            async with self._session.request(
                verb,
                self.server + path,
                params=query,
                data=data,
                headers=headers | {"Accept": accept, "Content-Type": kind},
                timeout=self._timeout,
            ) as response:
                code = response.status
                if response.status >= 400:
                    raise await _error(response)
                answer: Object = json.loads(await response.read())
                return answer
        finally:
            metrics.API_CALLS.labels(verb, resource.plural, code).inc()

    async def _headers(self) -> dict[str, str]:
        # The client's hook reads a service account's token again after its renewal.
        token = await self._configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        return {"Authorization": token} if token else {}


def _event(line: bytes) -> Object:
    try:
        event: Object = json.loads(line)
    except ValueError:
        raise ConnectionError("the stream broke off within a line") from None
    return event


async def configuration(kubeconfig: str | None = None) -> Any:
    """Loads the configuration from the file `kubeconfig`. Without it, from the pod's service account or KUBECONFIG."""
    found = kubernetes_client.Configuration()
    if kubeconfig is None:
        try:
            kubernetes_config.load_incluster_config(client_configuration=found)
            return found
        except kubernetes_config.ConfigException:
            pass
    await kubernetes_config.load_kube_config(config_file=kubeconfig, client_configuration=found)
    return found


async def _error(response: aiohttp.ClientResponse) -> ApiError:
    text = await response.text()
    try:
        status = json.loads(text)
        return ApiError(response.status, status.get("reason", ""), status.get("message", text))
    except (ValueError, AttributeError):
        return ApiError(response.status, response.reason or "", text)
