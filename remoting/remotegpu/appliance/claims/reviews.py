"""A cache of token reviews by the API server: for a minute, and longer while the API server does not answer.

A refusal is cached too, for some seconds.
"""

import asyncio
import contextlib
import hashlib
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from remotegpu.appliance.metrics import Counters

_FRESH_SECONDS: Final = 60.0
_REFUSED_SECONDS: Final = 5.0
_MOST_KEPT: Final = 4096
# Limits of reviews at a time. A flood of unknown tokens must not reach the API server or block other callers.
_MOST_AT_A_TIME: Final = 8
_MOST_OF_PEER: Final = 2
_MOST_CALLS_OF_PEER: Final = 32

_ACCOUNT: Final = "system:serviceaccount:"


class TokenRefusedError(Exception):
    """Raised if the API server refuses the token. The message has the cause."""


class UnreachableError(Exception):
    """Raised if the API server gives no answer. The message has the cause."""


class BusyError(Exception):
    """Raised if too many calls of one peer wait for the API server. The message names the peer."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The owner of a token: a service account, and the pod to which the token is bound."""

    user: str
    pod_name: str = ""
    pod_uid: str = ""
    audiences: frozenset[str] = frozenset()  # the accepted audiences that the token has

    @property
    def account(self) -> str:
        """NAMESPACE:NAME of the service account; empty for a user of another kind."""
        return self.user.removeprefix(_ACCOUNT) if self.user.startswith(_ACCOUNT) else ""

    @property
    def namespace(self) -> str:
        return self.account.partition(":")[0]

    def __str__(self) -> str:
        return f"pod {self.namespace}/{self.pod_name} ({self.pod_uid})" if self.pod_uid else self.user


Review = Callable[[str], Awaitable[Identity]]
_Answer = TypeVar("_Answer")


@dataclass(slots=True)
class _Room:
    """The reviews of one peer: free places, and calls that wait or run."""

    places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_MOST_OF_PEER))
    calls: int = 0


class Reviews:
    """Asks for reviews and caches the results by a hash of the token. Tokens themselves are not stored.

    `review` raises TokenRefusedError or UnreachableError. A confirmed identity is trusted for `believe_seconds` while
    the API server does not answer. `trouble` is the reason why the last review had no answer; empty if it had one.
    """

    def __init__(
        self,
        review: Review,
        believe_seconds: float,
        counters: Counters,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._review = review
        self._counters = counters
        self.believe_seconds = believe_seconds
        self._clock = clock
        self._confirmed: OrderedDict[bytes, tuple[float, Identity]] = OrderedDict()
        self._refused: OrderedDict[bytes, tuple[float, str]] = OrderedDict()
        self._places = asyncio.Semaphore(_MOST_AT_A_TIME)
        self._rooms: dict[str, _Room] = {}
        self.trouble = ""

    async def identity(self, token: str, peer: str) -> Identity:
        """Returns the identity of a token that came in a call from the address `peer`.

        Raises TokenRefusedError, UnreachableError and BusyError.
        """
        key = hashlib.sha256(token.encode()).digest()
        known = self._fresh(key)
        if known is not None:
            return known
        async with self._place(peer):
            # Another call may have got the result for the same token while this call waited.
            return self._fresh(key) or await self._ask(token, key)

    def _fresh(self, key: bytes) -> Identity | None:
        """Returns the cached identity, or None. Raises TokenRefusedError if the token was refused a moment ago."""
        now = self._clock()
        when, why = self._refused.get(key, (0.0, ""))
        if when and now - when < _REFUSED_SECONDS:
            raise TokenRefusedError(why)
        when, identity = self._confirmed.get(key, (0.0, None))
        return identity if identity is not None and now - when < _FRESH_SECONDS else None

    @contextlib.asynccontextmanager
    async def _place(self, peer: str) -> AsyncIterator[None]:
        """Holds one of the places for reviews. Each peer has few places, so that it cannot block other peers."""
        room = self._rooms.setdefault(peer, _Room())
        if room.calls >= _MOST_CALLS_OF_PEER:
            raise BusyError(f"{room.calls} calls from {peer} wait already")
        room.calls += 1
        try:
            async with room.places, self._places:
                yield
        finally:
            room.calls -= 1
            if not room.calls:
                del self._rooms[peer]

    async def _ask(self, token: str, key: bytes) -> Identity:
        try:
            identity = await self._timed(token)
        except TokenRefusedError as error:
            self.trouble = ""
            self._confirmed.pop(key, None)
            _keep(self._refused, key, (self._clock(), str(error)))
            raise
        except UnreachableError as error:
            self.trouble = str(error)
            if key not in self._confirmed:
                raise
            # A confirmed identity stays trusted while the API server does not answer: programs continue while the API
            # server is replaced.
            when, known = self._confirmed[key]
            if self._clock() - when >= self.believe_seconds:
                message = f"{error}; what it confirmed is believed for {self.believe_seconds:.0f} s, which are over"
                raise UnreachableError(message) from None
            return known
        self.trouble = ""
        _keep(self._confirmed, key, (self._clock(), identity))
        return identity

    async def _timed(self, token: str) -> Identity:
        asked, outcome = self._clock(), "unanswered"
        try:
            identity = await self._review(token)
            outcome = "confirmed"
        except TokenRefusedError:
            outcome = "refused"
            raise
        finally:
            self._counters.token_reviews.labels(outcome=outcome).observe(self._clock() - asked)
        return identity


def _keep(answers: OrderedDict[bytes, _Answer], key: bytes, answer: _Answer) -> None:
    answers[key] = answer
    answers.move_to_end(key)
    while len(answers) > _MOST_KEPT:
        answers.popitem(last=False)
