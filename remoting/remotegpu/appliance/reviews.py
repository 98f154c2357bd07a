"""Whose a token is: asked of the API server, remembered for a minute, and while nobody answers for longer."""

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

_FRESH_SECONDS: Final = 60.0
_MOST_KEPT: Final = 4096
# A stranger's tokens must not become a flood at the API server.
_MOST_AT_A_TIME: Final = 8

_ACCOUNT: Final = "system:serviceaccount:"


class TokenRefusedError(Exception):
    """The API server says that the token is no good; the message says why."""


class UnreachableError(Exception):
    """The API server gives no answer; the message says why."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A service account, and the pod that the token is bound to."""

    user: str
    pod_name: str = ""
    pod_uid: str = ""

    @property
    def account(self) -> str:
        """NAMESPACE:NAME, or nothing for a user of another kind."""
        return self.user.removeprefix(_ACCOUNT) if self.user.startswith(_ACCOUNT) else ""

    @property
    def namespace(self) -> str:
        return self.account.partition(":")[0]

    def __str__(self) -> str:
        return f"pod {self.namespace}/{self.pod_name} ({self.pod_uid})" if self.pod_uid else self.user


Review = Callable[[str], Awaitable[Identity]]


class Reviews:
    """`review` raises TokenRefusedError or UnreachableError. Tokens themselves are not kept."""

    def __init__(self, review: Review, clock: Callable[[], float] = time.monotonic) -> None:
        self._review = review
        self._clock = clock
        self._kept: OrderedDict[bytes, tuple[float, Identity]] = OrderedDict()
        self._room = asyncio.Semaphore(_MOST_AT_A_TIME)

    async def identity(self, token: str) -> Identity:
        key = hashlib.sha256(token.encode()).digest()
        known = self._fresh(key)
        if known is not None:
            return known
        async with self._room:
            # Another call may have got the answer about the same token while this one waited.
            return self._fresh(key) or await self._ask(token, key)

    def _fresh(self, key: bytes) -> Identity | None:
        asked, identity = self._kept.get(key, (0.0, None))
        return identity if identity is not None and self._clock() - asked < _FRESH_SECONDS else None

    async def _ask(self, token: str, key: bytes) -> Identity:
        try:
            identity = await self._review(token)
        except TokenRefusedError:
            self._kept.pop(key, None)
            raise
        except UnreachableError:
            # What was true a minute ago is believed until somebody can be asked: the programs of a cluster go on while
            # its API server is replaced.
            if key in self._kept:
                return self._kept[key][1]
            raise
        self._kept[key] = (self._clock(), identity)
        while len(self._kept) > _MOST_KEPT:
            self._kept.popitem(last=False)
        return identity
