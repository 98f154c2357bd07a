"""A client of the API server for changes of claims and token reviews. Only this file calls the API server."""

import os
from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol, Self

from kubernetes.aio import client, config

from remotegpu.api.kubernetes import CLAIMS
from remotegpu.appliance.claims.reviews import Identity, TokenRefusedError, UnreachableError
from remotegpu.kube.reflector import NO_ANSWER, Changed, Deleted, Listed, Unreachable, cause_of, follow

_REVIEW_SECONDS: Final = 2.0
_POD_NAME: Final = "authentication.kubernetes.io/pod-name"
_POD_UID: Final = "authentication.kubernetes.io/pod-uid"


class NoClusterError(Exception):
    """Raised if no API server can be found. The message has the cause."""


class Listener(Protocol):
    def listed(self, claims: Iterable[dict[str, Any]]) -> None: ...
    def changed(self, claim: dict[str, Any]) -> None: ...
    def deleted(self, claim: dict[str, Any]) -> None: ...
    def unreachable(self, why: str) -> None: ...


class ApiServer:
    """A client of the API server. It accepts tokens for one of `audiences`."""

    def __init__(self, api: client.ApiClient, audiences: Sequence[str]) -> None:
        self._api = api
        self._audiences = list(audiences)
        self._objects = client.CustomObjectsApi(api)
        self._authentication = client.AuthenticationV1Api(api)

    @classmethod
    async def connect(cls, audiences: Sequence[str]) -> Self:
        """Connects to the cluster of KUBECONFIG, if that is set, else to the cluster of this pod."""
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
        """Reviews a token, as `reviews.Review` describes. Raises UnreachableError or TokenRefusedError."""
        request = {"spec": {"token": token, "audiences": self._audiences}}
        try:
            reply = await self._authentication.create_token_review(request, _request_timeout=_REVIEW_SECONDS)
        except NO_ANSWER as error:
            raise UnreachableError(cause_of(error)) from None
        status = reply.status
        audiences = frozenset(status.audiences or ()) & frozenset(self._audiences)
        if not status.authenticated or not audiences:
            raise TokenRefusedError(" ".join((status.error or "it is for another audience").split()))
        extra = status.user.extra or {}
        name, uid = (next(iter(extra.get(key) or ()), "") for key in (_POD_NAME, _POD_UID))
        return Identity(status.user.username, name, uid, audiences)

    async def follow_claims(self, listener: Listener) -> None:
        """Reports all claims, then each change, until it is cancelled."""
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
