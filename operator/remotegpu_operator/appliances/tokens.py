"""The tokens that the operator sends to appliances: tokens of its service account, one for each appliance."""

import asyncio
import random
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from remotegpu_operator.cluster.kube import Api, ApiError, Resource, Unanswered

SERVICE_ACCOUNTS: Final = Resource("v1", "serviceaccounts", "ServiceAccount")
ACCOUNT: Final = "remotegpu-operator"
_SECONDS: Final = 3600
# The age at which a token is renewed: a random time, so that not all appliances' tokens are renewed at once.
_FRESH_SECONDS: Final = (1800.0, 2700.0)
# The shortest time between two requests for one audience.
_PAUSE_SECONDS: Final = 5.0


class NoTokenError(Exception):
    """No token is available for this appliance now; the message says why."""


class Tokens(Protocol):
    async def token(self, audience: str) -> str:
        """Returns a valid token for this audience. Raises NoTokenError if there is none."""

    def keep(self, audiences: Iterable[str]) -> None:
        """Forgets the tokens for all audiences except these."""


class FileToken:
    """One token for all appliances, in a file that another program renews. An operator outside a cluster uses it."""

    def __init__(self, file: Path) -> None:
        self._file = file

    async def token(self, audience: str) -> str:
        del audience
        try:
            return self._file.read_text(encoding="ascii").strip()
        except OSError as error:
            raise NoTokenError(f"the token {self._file} cannot be read: {error.strerror}") from None

    def keep(self, audiences: Iterable[str]) -> None:
        """Does nothing: one token serves all audiences."""


@dataclass(frozen=True, slots=True)
class _Made:
    token: str
    until: float  # the time of its renewal
    ends: float  # the time at which it expires


class OwnTokens:
    """Tokens that the API server issues (TokenRequest), cached until their renewal.

    `pod` is the name and uid of the operator's pod: the tokens become invalid when the pod is deleted. With None they
    are valid until they expire.
    """

    def __init__(self, api: Api, namespace: str, pod: tuple[str, str] | None) -> None:
        self._api = api
        self._namespace = namespace
        self._pod = pod
        self._made: dict[str, _Made] = {}
        self._tried: dict[str, float] = {}
        self._refused: dict[str, str] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}

    async def token(self, audience: str) -> str:
        """Returns the present token, even while a new one is requested. Waits only if there is no valid token."""
        made, now = self._made.get(audience), time.monotonic()
        is_due = made is None or now >= made.until
        may_ask = now - self._tried.get(audience, -_PAUSE_SECONDS) >= _PAUSE_SECONDS
        if is_due and may_ask and audience not in self._asking:
            self._tried[audience] = now
            self._asking[audience] = asyncio.create_task(self._make(audience))
        if made is None or now >= made.ends:
            if (asking := self._asking.get(audience)) is not None:
                await asyncio.wait([asking])
            made = self._made.get(audience)
            if made is None or time.monotonic() >= made.ends:
                why = self._refused.get(audience, "it was asked a moment ago")
                raise NoTokenError(f"the API server makes no token for audience {audience}: {why}")
        return made.token

    async def _make(self, audience: str) -> None:
        try:
            now = time.monotonic()
            token = await self._api.token(SERVICE_ACCOUNTS, self._namespace, ACCOUNT, self._request(audience))
            self._made[audience] = _Made(token, now + random.uniform(*_FRESH_SECONDS), now + _SECONDS)  # noqa: S311
        except (ApiError, *Unanswered) as error:
            self._refused[audience] = repr(error)
        finally:
            self._asking.pop(audience, None)

    def keep(self, audiences: Iterable[str]) -> None:
        kept = set(audiences)
        for held in (self._made, self._tried, self._refused):
            for gone in held.keys() - kept:
                del held[gone]

    def _request(self, audience: str) -> dict[str, object]:
        spec: dict[str, object] = {"audiences": [audience], "expirationSeconds": _SECONDS}
        if self._pod is not None:
            name, uid = self._pod
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}
        return {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}


def tokens(api: Api, namespace: str, file: Path | None, pod: tuple[str, str] | None) -> Tokens:
    return OwnTokens(api, namespace, pod) if file is None else FileToken(file)
