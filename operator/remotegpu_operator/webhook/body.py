"""Reads the bodies of admission requests with limits, because anyone who reaches the port can send a request."""

import asyncio
import json
import re
from typing import Any, Final

from aiohttp import web

from remotegpu_operator.webhook.mutate import ReviewError

# The largest body. A review of an update has an object twice, each at most as large as a request to the API server:
# 3 MiB.
_LARGEST: Final = 8 << 20
# Of bodies larger than this only one is read at a time.
_SMALL: Final = 256 << 10
_READ_SECONDS: Final = 2.0
_CHUNK: Final = 64 << 10
# The most objects, lists and members of them. Each takes much more memory than its bytes. An object of 3 MiB has fewer.
_MOST_PARTS: Final = 200_000
_DEEPEST: Final = 100
_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_STEPS: Final = {ord("{"): 1, ord("["): 1, ord("}"): -1, ord("]"): -1}
_OTHERS: Final = bytes(set(range(256)) - _STEPS.keys())


class Bodies:
    def __init__(self) -> None:
        self._large = asyncio.Lock()

    async def read(self, request: web.Request) -> bytes:
        """Reads a body. Raises HTTPRequestTimeout after 2 s, and HTTPRequestEntityTooLarge above 8 MiB."""
        holds = False
        body = bytearray()
        try:
            _check_size(request.content_length or 0)
            async with asyncio.timeout(_READ_SECONDS):
                async for chunk in request.content.iter_chunked(_CHUNK):
                    body += chunk
                    _check_size(len(body))
                    if len(body) > _SMALL and not holds:
                        holds = await self._large.acquire()
        except TimeoutError:
            raise web.HTTPRequestTimeout(text=f"the request was not there after {_READ_SECONDS:.0f} s\n") from None
        finally:
            if holds:
                self._large.release()
        return bytes(body)


def _check_size(size: int) -> None:
    if size > _LARGEST:
        raise web.HTTPRequestEntityTooLarge(max_size=_LARGEST, actual_size=size)


def parse(body: bytes) -> Any:
    """Parses a body. Raises ReviewError if it has too many parts or levels, and ValueError if it is not JSON."""
    if sum(map(body.count, (b"{", b"[", b","))) > _MOST_PARTS:
        raise ReviewError(f"the review has more than {_MOST_PARTS} parts")
    if _depth(body) > _DEEPEST:
        raise ReviewError(f"the review is nested deeper than {_DEEPEST}")
    return json.loads(body)


def _depth(body: bytes) -> int:
    deepest = depth = 0
    for bracket in _STRING.sub(b"", body).translate(None, _OTHERS):
        depth += _STEPS[bracket]
        deepest = max(deepest, depth)
    return deepest
