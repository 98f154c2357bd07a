"""The API server: changes of claims, and token reviews. The only file here that speaks to it."""

import os
from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol, Self

from kubernetes.aio import client, config

from remotegpu.api.kubernetes import CLAIMS
from remotegpu.appliance.claims.reviews import Identity, TokenRefusedError, UnreachableError
from remotegpu.kube.reflector import NO_ANSWER, Changed, Deleted, Listed, Unreachable, follow, one_line

_REVIEW_SECONDS: Final = 2.0
_POD_NAME: Final = "authentication.kubernetes.io/pod-name"
_POD_UID: Final = "authentication.kubernetes.io/pod-uid"


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
        except NO_ANSWER as error:
            raise UnreachableError(one_line(error)) from None
        status = reply.status
        audiences = frozenset(status.audiences or ()) & frozenset(self._audiences)
        if not status.authenticated or not audiences:
            raise TokenRefusedError(" ".join((status.error or "it is for another audience").split()))
        extra = status.user.extra or {}
        name, uid = (next(iter(extra.get(key) or ()), "") for key in (_POD_NAME, _POD_UID))
        return Identity(status.user.username, name, uid, audiences)

    async def follow_claims(self, listener: Listener) -> None:
        """Reports all claims, then each change, forever."""
        async for change in follow(self._objects, CLAIMS):
            match change:
                case Listed(claims):
                    listener.listed(claims)
                case Changed(claim):
                    listener.changed(claim)
                case Deleted(claim):
                    listener.deleted(claim)
                case Unreachable(cause):
                    listener.unreachable(cause)
