"""The user's module `user_steps` under rules, in a session of the test's own."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from support.offload import local_session

from remotegpu.offload.client.session import Session, use
from remotegpu.offload.config.model import CodeRules, Config, FunctionRule
from remotegpu.offload.functions import client

FILE = Path(__file__).parents[1] / "offload" / "programs" / "user_steps.py"


def load() -> ModuleType:
    """The user's module, anew."""
    spec = importlib.util.spec_from_file_location("user_steps", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["user_steps"] = module
    spec.loader.exec_module(module)
    return module


def config(*rules: FunctionRule, **more: Any) -> Config:
    return Config(rules=rules or (FunctionRule("user_steps.*"),), code=CodeRules(page=("user_steps",)), **more)


def session_of_steps() -> Iterator[Session]:
    """For a fixture: with `user_steps` on the path, so that it can be paged."""
    sys.path.insert(0, str(FILE.parent))
    try:
        with local_session(config()) as session:
            # So that the source has travelled, and tests count only what they cause.
            steps_of(session).where()
            yield session
    finally:
        sys.path.remove(str(FILE.parent))
        sys.modules.pop("user_steps", None)


def steps_of(session: Session) -> ModuleType:
    """The module, anew, with all its functions replaced."""
    module = load()
    client.install(module, config(), session)
    return module


def ruled(session: Session, name: str, **rule: Any) -> Any:
    """One function of the module under a rule of its own."""
    module = sys.modules["user_steps"]
    function = getattr(module, name)
    return client.wrap(getattr(function, "__wrapped__", function), FunctionRule(f"user_steps.{name}", **rule), session)


class Trips:
    """Counts round trips, of both directions."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.start = self.total()

    def total(self) -> int:
        counters = self.session.peer.counters
        return counters.round_trips + sum(counters.served.values())

    @property
    def count(self) -> int:
        return self.total() - self.start


def held(session: Session) -> tuple[int, int, int]:
    """Objects that the acceptor holds for us, that we hold of it, that it holds of us."""
    codec = client.of(session).codec
    gc.collect()
    # What died is said with the next message.
    client.of(session).link.ask({"op": "call", "t": ["builtins", "len"]}, (([],), {}))
    there = session.stats()["acceptor"]["objects"]["held"]
    return there, len(codec.held), len(codec.exports)


@contextlib.contextmanager
def session_beside(session: Session) -> Iterator[Session]:
    """A second one in this process."""
    use(None)
    try:
        with local_session(config()) as other:
            yield other
    finally:
        use(session)
