"""The API server: changes of claims, and token reviews. The only file here that speaks to it."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Final, Protocol, Self

import aiohttp
from kubernetes.aio import client, config, watch

from remotegpu.api.kubernetes import CLAIMS, GROUP, VERSION
from remotegpu.appliance.claims.reviews import Identity, TokenRefusedError, UnreachableError

_REVIEW_SECONDS: Final = 2.0
_LIST_SECONDS: Final = 20.0
# The server ends a watch by itself; one that lasts longer is dead.
_WATCH_SECONDS: Final = 60
_WATCH_GRACE_SECONDS: Final = 5.0
_FIRST_PAUSE_SECONDS: Final = 0.2
_LONGEST_PAUSE_SECONDS: Final = 5.0
# So many lists older than the known version are ignored. After that the cluster's storage was restored.
_STALE_LISTS: Final = 12
_GONE: Final = 410
_POD_NAME: Final = "authentication.kubernetes.io/pod-name"
_POD_UID: Final = "authentication.kubernetes.io/pod-uid"

_NO_ANSWER: Final = (client.ApiException, aiohttp.ClientError, TimeoutError, OSError, ValueError)


class NoClusterError(Exception):
    """No API server can be found; the message says why."""


class Listener(Protocol):
    def listed(self, claims: Iterable[dict[str, Any]]) -> None: ...
    def changed(self, claim: dict[str, Any]) -> None: ...
    def deleted(self, claim: dict[str, Any]) -> None: ...
    def unreachable(self, why: str) -> None: ...


class ApiServer:
    """A client of the API server. `audiences`: for which tokens are reviewed."""

    def __init__(self, api: client.ApiClient, audiences: Sequence[str]) -> None:
        self._api = api
        self._audiences = list(audiences)
        self._objects = client.CustomObjectsApi(api)
        self._authentication = client.AuthenticationV1Api(api)

    @classmethod
    async def connect(cls, audiences: Sequence[str]) -> Self:
        """Connects to the pod's cluster; outside of one to that of KUBECONFIG."""
        configuration = client.Configuration()
        try:
            if os.environ.get("KUBECONFIG"):
                await config.load_kube_config(client_configuration=configuration)
            else:
                config.load_incluster_config(client_configuration=configuration)
        except (config.ConfigException, OSError) as error:
            raise NoClusterError(str(error)) from None
        return cls(client.ApiClient(configuration), audiences)

    async def close(self) -> None:
        await self._api.close()

    async def review(self, token: str) -> Identity:
        """Reviews a token. See `reviews.Review`."""
        request = {"spec": {"token": token, "audiences": self._audiences}}
        try:
            reply = await self._authentication.create_token_review(request, _request_timeout=_REVIEW_SECONDS)
        except _NO_ANSWER as error:
            raise UnreachableError(_one_line(error)) from None
        status = reply.status
        audiences = frozenset(status.audiences or ()) & frozenset(self._audiences)
        if not status.authenticated or not audiences:
            raise TokenRefusedError(" ".join((status.error or "it is for another audience").split()))
        extra = status.user.extra or {}
        name, uid = (next(iter(extra.get(key) or ()), "") for key in (_POD_NAME, _POD_UID))
        return Identity(status.user.username, name, uid, audiences)

    async def follow_claims(self, listener: Listener) -> None:
        """Reports all claims, then each change, forever; lists again whenever the watch is lost.

        An API server that was away may list an older state: claims that it does not know yet are not deleted.
        """
        pause, version, stale = _FIRST_PAUSE_SECONDS, "", 0
        while True:
            try:
                listed: Any = await self._objects.list_cluster_custom_object(
                    GROUP, VERSION, CLAIMS, _request_timeout=_LIST_SECONDS
                )
                found = listed["metadata"]["resourceVersion"]
                if _is_older(found, version) and stale < _STALE_LISTS:
                    stale += 1
                    raise ValueError(f"it listed the claims of version {found}, and {version} was seen before")
                listener.listed(listed["items"])
                pause, version, stale = _FIRST_PAUSE_SECONDS, found, 0
                while True:
                    async for seen in self._watch(version, listener):
                        version = seen
            except _NO_ANSWER as error:
                if not (isinstance(error, client.ApiException) and error.status == _GONE):
                    listener.unreachable(_one_line(error))
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    async def _watch(self, version: str, listener: Listener) -> AsyncIterator[str]:
        """Reports changes until the server ends the stream; yields each version from which to go on."""
        async with watch.Watch() as stream:
            events = stream.stream(
                self._objects.list_cluster_custom_object,
                GROUP,
                VERSION,
                CLAIMS,
                resource_version=version,
                allow_watch_bookmarks=True,
                timeout_seconds=_WATCH_SECONDS,
                _request_timeout=_WATCH_SECONDS + _WATCH_GRACE_SECONDS,
            )
            async for event in events:
                claim = event["raw_object"]
                match event["type"]:
                    case "ADDED" | "MODIFIED":
                        listener.changed(claim)
                    case "DELETED":
                        listener.deleted(claim)
                yield claim["metadata"]["resourceVersion"]


def _is_older(version: str, seen: str) -> bool:
    """Whether `version` is before `seen`. Versions of one kind grow (Kubernetes, "API Concepts", resource versions)."""
    return version.isdecimal() and seen.isdecimal() and int(version) < int(seen)


def _one_line(error: Exception) -> str:
    """Returns the cause alone: an ApiException prints headers and body."""
    if isinstance(error, client.ApiException):
        return f"{error.status} {error.reason}"
    return " ".join(str(error).split()) or type(error).__name__
