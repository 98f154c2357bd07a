"""A user's module under rules, in a session of the test's own; and what such a session counts and holds."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from offload_local import local_session

from remotegpu_offload.client.session import Session, use
from remotegpu_offload.config.model import CodeRules, Config, FunctionRule, Rule
from remotegpu_offload.functions import client

PROGRAMS = Path(__file__).parents[1] / "core" / "programs"


class UserModule:
    """The module `name` of a folder of programs, and the rules that it is under."""

    def __init__(self, name: str, *rules: Rule, folder: Path = PROGRAMS) -> None:
        self.name = name
        self.path = folder / f"{name}.py"
        self.config = self.under(*rules)

    def under(self, *rules: Rule) -> Config:
        """The module under other rules."""
        return Config(rules=rules, code=CodeRules(page=(self.name,)))

    def empty(self) -> ModuleType:
        """The module, anew, before its first line."""
        spec = importlib.util.spec_from_file_location(self.name, self.path)
        assert spec is not None
        module = sys.modules[self.name] = importlib.util.module_from_spec(spec)
        return module

    def load(self) -> ModuleType:
        """The module, anew, as it is."""
        module = self.empty()
        assert module.__spec__ is not None and module.__spec__.loader is not None
        module.__spec__.loader.exec_module(module)
        return module

    def replaced(self, session: Session) -> ModuleType:
        """The module, anew, with all that the rules name replaced."""
        module = self.load()
        client.install(module, self.config, session)
        return module

    def ruled(self, session: Session, name: str, **rule: Any) -> Any:
        """One function of the module, as it was loaded last, under a rule of its own."""
        function = getattr(sys.modules[self.name], name)
        original = getattr(function, "__wrapped__", function)
        return client.wrap(original, FunctionRule(f"{self.name}.{name}", **rule), session)

    @contextlib.contextmanager
    def session(self) -> Iterator[Session]:
        """With the module on the path, so that it can be paged."""
        sys.path.insert(0, str(self.path.parent))
        try:
            with local_session(self.config) as session:
                # So that the source has travelled, and tests count only what they cause.
                client.wrap(exec, FunctionRule("builtins.exec"), session)(f"import {self.name}", {})
                yield session
        finally:
            sys.path.remove(str(self.path.parent))
            sys.modules.pop(self.name, None)


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
    # The next message reports the objects that died.
    client.of(session).link.ask({"op": "call", "t": ["builtins", "len"]}, (([],), {}))
    remote = session.stats()["acceptor"]["objects"]["held"]
    return remote, len(codec.held), len(codec.exports)


@contextlib.contextmanager
def session_beside(session: Session) -> Iterator[Session]:
    """A second one in this process, under the same rules."""
    use(None)
    try:
        with local_session(session.config) as other:
            yield other
    finally:
        use(session)
