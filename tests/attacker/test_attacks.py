"""Each attack of the table fails; and without its defence it succeeds, so that the first of these means something."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from attacker.attack import UNDEFENDED, Attack, Control, How, Outcome, Where
from attacker.table import ATTACKS, MODULES

#: The test build with all of its defences.
_WHOLE = Control(How.BUILD, "nothing")


def _named(attack: Attack) -> str:
    return f"{attack.where.value}-{attack.name}"


def _carried_out(attack: Attack, world: Any) -> Outcome:
    function: Callable[[Any], Outcome] = getattr(MODULES[attack.where], attack.name)
    return function(world)


def _needs_test_build(control: Control | None) -> None:
    if control is not None and control.how is How.BUILD and not (UNDEFENDED / "remotegpu-worker").exists():
        pytest.fail("the test build is missing: `make undefended`")


@pytest.fixture(scope="module")
def defended() -> Iterator[Callable[[Where, Control | None], Any]]:
    """The worlds with all defences, each made once."""
    made: dict[tuple[Where, Control | None], Any] = {}
    with ExitStack() as stack:

        def world(where: Where, build: Control | None) -> Any:
            if (where, build) not in made:
                _needs_test_build(build)
                made[where, build] = stack.enter_context(MODULES[where].world(build))
            return made[where, build]

        yield world


@pytest.mark.parametrize("attack", ATTACKS, ids=_named)
def test_attack_fails(attack: Attack, defended: Callable[[Where, Control | None], Any]) -> None:
    # Only the test build's worker obeys an attacker.
    build = _WHOLE if attack.control == Control(How.BUILD, "sandbox") else None
    assert _carried_out(attack, defended(attack.where, build)) == Outcome(False, attack.expected)


@pytest.mark.parametrize("attack", [each for each in ATTACKS if each.control.how is not How.NONE], ids=_named)
def test_attack_succeeds_without_its_defence(attack: Attack) -> None:
    _needs_test_build(attack.control)
    with MODULES[attack.where].world(attack.control) as world:
        assert _carried_out(attack, world).won
