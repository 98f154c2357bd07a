"""Objects that live at an acceptor move to another one, under the eyes of a program that sees no difference."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from offload_local import LocalAcceptors, local_session

from remotegpu_offload.client.session import Session
from remotegpu_offload.config.model import ClassRule, CodeRules, Config, FunctionRule, SessionRules
from remotegpu_offload.functions import client, moving
from remotegpu_offload.objects.codec import UnknownObjectError
from remotegpu_offload.wire.errors import LostError, OffloadError

PROGRAMS = Path(__file__).parent / "programs"
RULES = (ClassRule("user_models.Model"), ClassRule("user_models.Store"), FunctionRule("user_steps.*"))


@contextlib.contextmanager
def program(**rules: Any) -> Iterator[tuple[Session, LocalAcceptors, Any, Any]]:
    """A session, its acceptors, and a user's modules under rules."""
    config = Config(rules=RULES, code=CodeRules(page=("user_models", "user_steps")), session=SessionRules(**rules))
    acceptors = LocalAcceptors()
    sys.path.insert(0, str(PROGRAMS))
    try:
        with local_session(config, connector=acceptors) as session:
            modules: list[Any] = []
            for name in ("user_models", "user_steps"):
                spec = importlib.util.spec_from_file_location(name, PROGRAMS / f"{name}.py")
                assert spec is not None and spec.loader is not None
                module = importlib.util.module_from_spec(spec)
                sys.modules[name] = module
                spec.loader.exec_module(module)
                client.install(module, config, session)
                modules.append(module)
            yield session, acceptors, modules[0], modules[1]
    finally:
        sys.path.remove(str(PROGRAMS))
        for name in ("user_models", "user_steps"):
            sys.modules.pop(name, None)


def test_instances_results_and_callbacks_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "PIECE", 1 << 20)
    with program() as (session, _, models, steps):
        seen: list[int] = []

        class Mine(models.Model):  # type: ignore[misc,name-defined]
            def total(self, extra: int = 0) -> int:
                return int(super().total(extra)) + 100

        model, other, mine = models.Model(3, name="moves"), models.Model(4), Mine(2)
        model.friend, model.big, model.tell = other, np.arange(400_000.0), seen.append
        kept = client.wrap(steps.identity.__wrapped__, FunctionRule("user_steps.identity", returns="ref"), session)
        handle = kept({"n": [1, 2]})
        adder = steps.make_adder(5)
        data = np.arange(100_000)
        before = (model.where(), steps.total(data))
        session.switch()
        assert steps.where() == model.where() != before[0] and steps.total(data) == before[1]
        assert model.total() == 3 and list(model) == [0, 1, 2] and model.describe() == "base moves 3"
        assert model.friend is other and model.big.sum() == np.arange(400_000.0).sum()
        assert mine.total() == 101 and type(mine.itself()) is Mine
        assert handle.fetch() == {"n": [1, 2]} and adder(1) == 6
        model.tell(7)
        assert seen == [7]
        # Once more, and then all may end.
        session.switch()
        assert mine.total() == 101 and model.friend is other
        model.tell(8)
        assert seen == [7, 8]
        new = steps.make_adder(1)
        assert (adder(1), new(1)) == (6, 2)
        codec = client.of(session).codec
        del model, other, mine, handle, adder, new
        client.of(session).link.ask({"op": "call", "t": ["gc", "collect"]}, ((), {}))
        client.of(session).link.ask({"op": "call", "t": ["builtins", "len"]}, (([],), {}))
        assert session.stats()["acceptor"]["objects"]["held"] == 0 and len(codec.exports) == 0


def test_containers_of_instances_move_with_them() -> None:
    with program() as (session, _, models, _):
        store = models.Store()
        items = store.items
        session.switch()
        items.append(5)
        assert store.items is items == [3, 1, 5] and store.has(items) and store.seen()[0] == items


def test_handles_from_after_a_snapshot_are_not_taken_for_others() -> None:
    with program(resume_seconds=60, snapshot_seconds=3600) as (session, acceptors, models, _):
        store = models.Store()
        session.snapshot()
        items = store.items
        items.append(5)
        os.kill(acceptors.processes[0].pid, signal.SIGKILL)
        acceptors.processes[0].wait(60)
        with contextlib.suppress(LostError):
            store.seen()
        assert store.by_name == {"a": [1]} and store.nested == [[1], [2]] and store.items == [3, 1]
        with pytest.raises(UnknownObjectError):
            items.append(6)
        assert store.seen()[0] == store.items == [3, 1]


def test_what_cannot_move_stays_and_goes_on() -> None:
    with program() as (session, _, models, steps):
        model, generator = models.Model(2), steps.squares(5)
        assert next(generator) == 0
        with pytest.raises(OffloadError, match=r"\bbuiltins\.generator\b"):
            session.switch()
        assert list(generator) == [1, 4, 9, 16] and model.total() == 1
        del generator
        steps.add(1)
        session.switch()
        assert model.total() == 1


def test_calls_go_on_elsewhere_when_nothing_lived_at_a_lost_acceptor() -> None:
    with program(resume_seconds=60) as (_, acceptors, _, steps):
        first = steps.where()
        os.kill(acceptors.processes[0].pid, signal.SIGKILL)
        acceptors.processes[0].wait(60)
        with contextlib.suppress(LostError):
            # It may be noticed only by this call, which may have been carried out.
            steps.add(1)
        assert steps.where() != first and steps.add(1) == 3


def test_what_lived_at_a_lost_acceptor_is_missed() -> None:
    with program(resume_seconds=60) as (_, acceptors, models, _):
        model = models.Model(2)
        os.kill(acceptors.processes[0].pid, signal.SIGKILL)
        acceptors.processes[0].wait(60)
        with pytest.raises(LostError):
            model.total()
        with pytest.raises(LostError, match=r"\b1 objects\b"):
            model.total()


def test_objects_go_on_from_a_snapshot() -> None:
    with program(resume_seconds=60, snapshot_seconds=3600) as (session, acceptors, models, _):
        model = models.Model(3)
        model[0] = 9
        session.snapshot()
        model[0] = 10
        os.kill(acceptors.processes[0].pid, signal.SIGKILL)
        acceptors.processes[0].wait(60)
        with contextlib.suppress(LostError):
            model.total()
        assert list(model) == [9, 1, 2]
