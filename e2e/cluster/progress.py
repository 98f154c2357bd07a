"""Progress messages for a person who waits for the cluster."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def step(what: str) -> Iterator[None]:
    print(f"==> {what}", flush=True)
    begin = time.monotonic()
    yield
    print(f"    {time.monotonic() - begin:.1f} s", flush=True)


def wait(condition: Callable[[], bool], seconds: float, failure: Callable[[], str]) -> None:
    """Waits until the condition holds; fails after `seconds` with the message that `failure` returns."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(failure())
        time.sleep(0.1)
