"""What a person who waits for the cluster sees."""

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
    """Until the condition holds; else fails with the sentence that `failure` makes of what is there."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(failure())
        time.sleep(0.1)
