"""100,000 calls leave nothing behind at either end: no objects, handles, pages, threads, and no memory."""

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from offload_local import local_session

from remotegpu_offload.client.session import Session
from remotegpu_offload.config.model import CodeRules, Config, FunctionRule
from remotegpu_offload.functions import client

PROGRAMS = Path(__file__).parent / "programs"
CALLS = 100_000
# After so many calls everything is as it stays.
EARLY = 10_000
# What the inventory itself, a cache or the allocator may add in the other 90,000: far less than one of each call.
TRACKED = 500
BLOCKS = 3_000
RESIDENT = 32 << 20

RULES = (
    FunctionRule("endurance.make", returns="ref"),
    FunctionRule("endurance.extend", args={"things": "ref"}),
    FunctionRule("endurance.append", mutates=("things",)),
    FunctionRule("endurance.[acdfmt]*"),
)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(PROGRAMS))
        # Where `remotegpu offload stats` would find this session.
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("run")))
        with local_session(Config(rules=RULES, code=CodeRules(page=("endurance",)))) as session:
            yield session
    sys.modules.pop("endurance", None)


@pytest.fixture(scope="module")
def steps(session: Session) -> ModuleType:
    import endurance  # type: ignore[import-not-found]

    client.install(endurance, session.config, session)
    module: ModuleType = endurance
    return module


def work(session: Session, steps: Any) -> list[Callable[[int], None]]:
    """Returns the calls that are made over and over again, each with its check; some make more than one call."""
    kept = steps.make(3)
    data = [np.full(1 << 14, float(number)) for number in range(4)]

    def value(number: int) -> None:
        assert steps.add(number, 1) == number + 1

    def described(number: int) -> None:
        assert steps.describe("x", parts=[number, 1]) == {"name": "x", "parts": 2, "sum": number + 1}

    def made_there(number: int) -> None:
        assert steps.extend(steps.make(number % 7), number) == number % 7 + 1

    def kept_there(number: int) -> None:
        assert steps.describe("kept", parts=kept)["parts"] == 3

    def changed(number: int) -> None:
        things = [number]
        steps.append(things, number)
        assert things == [number, number]

    def raised(number: int) -> None:
        with pytest.raises(LookupError) as caught:
            steps.fail(number)
        assert caught.value.args == (number, "as asked")

    def generated(number: int) -> None:
        assert sum(steps.count(5)) == 10

    def abandoned(number: int) -> None:
        assert next(steps.count(1000)) == 0

    def called_back(number: int) -> None:
        assert steps.apply(lambda given: given * 2, number) == number * 2 + 1

    def raised_back(number: int) -> None:
        def refuse(_: int) -> int:
            raise LookupError(number)

        assert steps.attempt(refuse, number) == number

    def consumed(number: int) -> None:
        assert steps.consume(iter([number, 1])) == number + 1

    def paged(number: int) -> None:
        assert steps.total(data[number % 4]) == data[number % 4].sum()

    def new_class(number: int) -> None:
        class Local:
            def __init__(self, given: int) -> None:
                self.value = given

        assert steps.made_by(Local, number) == number

    def by_value(number: int) -> None:
        step = client.wrap(lambda given: given + number, FunctionRule("steps"), session)
        assert step(1) == step(1) == number + 1

    often = [value] * 140 + [described] * 10 + [made_there] * 4 + [kept_there] * 2
    seldom = [changed, raised, generated, abandoned, called_back, consumed, paged]
    return [*often, *seldom, new_class, by_value, raised_back]


@pytest.mark.timeout(1200)
def test_a_hundred_thousand_calls_leave_nothing_behind(session: Session, steps: Any) -> None:
    kinds = work(session, steps)
    remote = client.wrap(steps.inventory, FunctionRule("endurance.inventory"), session)

    def calls() -> int:
        return session.peer.counters.by_service["CALL"] + session.peer.counters.served["CALL"]

    def repeat(many: int) -> None:
        number = 0
        while calls() < many:
            for kind in kinds:
                kind(number)
                number += 1

    def inventories() -> tuple[Any, Any]:
        # The next message reports the handles that died here.
        remote()
        return steps.inventory(), remote()

    repeat(EARLY)
    before = inventories()
    repeat(CALLS)
    # What is left behind stays; a command that asks this session something does not.
    for _ in range(5):
        after = inventories()
        if [found for found, _ in after] == [found for found, _ in before]:
            break
    assert calls() >= CALLS
    for (found_before, sizes_before), (found, sizes) in zip(before, after, strict=True):
        changed = {name for name in found | found_before if found.get(name) != found_before.get(name)}
        assert {name: (found_before.get(name), found.get(name)) for name in changed} == {}
        # Where a socket was full for the first time there is a thread that writes from then on.
        assert sizes["threads"] <= sizes_before["threads"] + 1
        assert sizes["tracked"] - sizes_before["tracked"] < TRACKED
        assert sizes["allocated"] - sizes_before["allocated"] < BLOCKS
        assert sizes["resident"] - sizes_before["resident"] < RESIDENT


@pytest.mark.timeout(600)
def test_thousands_of_threads_one_after_the_other(session: Session, steps: Any) -> None:
    """Each thread is a logical thread, for which the acceptor has a thread that is soon unused."""
    answers: list[int] = []
    for number in range(1500):
        thread = threading.Thread(target=lambda: answers.append(steps.add(number, 1)))  # noqa: B023 - joined below
        thread.start()
        thread.join()
    assert answers == list(range(1, 1501))
