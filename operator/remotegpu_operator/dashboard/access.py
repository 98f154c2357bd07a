"""Authenticates readers and finds their rights, by requests to the API server that are cached for some seconds."""

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Final

from remotegpu.api.kubernetes import CLAIMS, GROUP, POOLS
from remotegpu.dashboard.state import Scope
from remotegpu_operator.cluster.kube import Api, Object, Resource

_TOKEN_REVIEWS: Final = Resource("authentication.k8s.io/v1", "tokenreviews", "TokenReview")
_ACCESS_REVIEWS: Final = Resource("authorization.k8s.io/v1", "subjectaccessreviews", "SubjectAccessReview")

_BELIEVED_SECONDS: Final = 20.0
_MOST_KEPT: Final = 1024
# The most concurrent reviews, so that a flood of unknown tokens does not reach the API server.
_MOST_AT_A_TIME: Final = 8


class NotSignedInError(Exception):
    """The token is missing or not valid. The message says which, and what to do."""


class NotAllowedError(Exception):
    """The user may list neither pools nor claims."""


@dataclass(frozen=True, slots=True)
class Reader:
    user: str
    scope: Scope


class Access:
    """Checks the access rights of readers.

    A reader who may not list all claims is checked for each namespace of `namespaces`. Rights are cached by a hash of
    the token. Refused tokens are not cached here, because the API server has its own cache.
    """

    def __init__(self, api: Api, namespaces: Callable[[], Awaitable[Collection[str]]]) -> None:
        self._api = api
        self._namespaces = namespaces
        self._readers: OrderedDict[str, tuple[float, Reader]] = OrderedDict()
        self._places = asyncio.Semaphore(_MOST_AT_A_TIME)
        self._asking: dict[str, asyncio.Lock] = {}

    async def reader(self, token: str) -> Reader:
        """Returns the reader with this token. Raises NotSignedInError, NotAllowedError and the errors of `Api`."""
        if not token:
            raise NotSignedInError("there is no token: send one of the cluster as `Authorization: Bearer TOKEN`")
        if not token.isascii():
            raise NotSignedInError("the token has letters that no token has; `kubectl create token ACCOUNT` makes one")
        digest = hashlib.sha256(token.encode()).hexdigest()
        # Concurrent requests with the same token share one review.
        async with self._asking.setdefault(digest, asyncio.Lock()):
            try:
                until, reader = self._readers.get(digest, (0.0, None))
                if reader is None or time.monotonic() >= until:
                    reader = await self._ask(token)
                    self._readers[digest] = (time.monotonic() + _BELIEVED_SECONDS, reader)
                    self._readers.move_to_end(digest)
                    if len(self._readers) > _MOST_KEPT:
                        self._readers.popitem(last=False)
            finally:
                self._asking.pop(digest, None)
        if not reader.scope.pools and reader.scope.namespaces == frozenset():
            raise NotAllowedError(
                f"{reader.user} may list neither gpupools nor the gpuclaims of a namespace that has some: bind a role "
                f"with the verb list for {CLAIMS} of {GROUP}"
            )
        return reader

    async def _ask(self, token: str) -> Reader:
        review = await self._review(_TOKEN_REVIEWS, {"token": token})
        if not review.get("authenticated"):
            why = review.get("error") or "it has expired, or is none of this cluster"
            raise NotSignedInError(f"the API server refuses the token: {why}; `kubectl create token ACCOUNT` makes one")
        user = review["user"]
        pools, everywhere = await asyncio.gather(self._may_list(user, POOLS), self._may_list(user, CLAIMS))
        if everywhere:
            return Reader(user["username"], Scope(None, pools))
        asked = sorted(await self._namespaces())
        answers = await asyncio.gather(*(self._may_list(user, CLAIMS, each) for each in asked))
        allowed = frozenset(each for each, yes in zip(asked, answers, strict=True) if yes)
        return Reader(user["username"], Scope(allowed, pools))

    async def _may_list(self, user: Object, plural: str, namespace: str = "") -> bool:
        attributes = {"verb": "list", "group": GROUP, "resource": plural, "namespace": namespace}
        about = {"user": user["username"], "resourceAttributes": attributes}
        about |= {key: user[key] for key in ("uid", "groups", "extra") if key in user}
        return bool((await self._review(_ACCESS_REVIEWS, about)).get("allowed"))

    async def _review(self, kind: Resource, about: Object) -> Object:
        async with self._places:
            body = {"apiVersion": kind.api, "kind": kind.kind, "spec": about}
            answer: Object = (await self._api.create(kind, None, body))["status"]
            return answer
