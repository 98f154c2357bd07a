"""Results too large for one message: the error says what to do, and calls still work. The limit is lowered."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from offload_local import local_session

from remotegpu_offload.config.model import CodeRules, Config, FunctionRule
from remotegpu_offload.functions import client
from remotegpu_offload.functions.errors import RemoteTraceback
from remotegpu_offload.functions.proxies import RemoteObject
from remotegpu_offload.objects import pages
from remotegpu_offload.objects.codec import CrossingError
from remotegpu_offload.wire import frames

LIMIT = 1 << 20
MANY = 1 << 18  # numbers of 8 bytes
# The limit, and the rule that helps.
TOO_LARGE = rf"\b{LIMIT}\b.*\breturns: ref\b"

Offloaded = Callable[..., Any]


@pytest.fixture(scope="module")
def remote() -> Iterator[Offloaded]:
    """A function of the module under a rule of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parent / "programs"))
        with local_session(Config(code=CodeRules(page=("large_results",)))) as session:
            import large_results  # type: ignore[import-not-found]

            def made(name: str, **rule: Any) -> Any:
                function = getattr(large_results, name)
                return client.wrap(function, FunctionRule(f"large_results.{name}", **rule), session)

            made("lower")(LIMIT)
            yield made
    sys.modules.pop("large_results", None)


def test_a_value_of_the_limit_fits_into_a_frame() -> None:
    # An iterator's message has small values before it.
    assert pages.LARGEST + frames.MAX_HEADER + 8 * frames.MAX_BUFFERS + 64 * pages.FLOOR <= frames.MAX_FRAME


def test_a_result_says_what_to_do(remote: Offloaded) -> None:
    ones = remote("ones")
    assert ones(1000).sum() == 1000
    with pytest.raises(CrossingError, match=TOO_LARGE) as caught:
        ones(MANY)
    assert isinstance(caught.value.__cause__, RemoteTraceback)
    assert ones(1000).sum() == 1000


@pytest.mark.parametrize("returns", ["ref", "auto"])
def test_a_large_result_may_stay_in_the_acceptor(remote: Offloaded, returns: str) -> None:
    kept = remote("ones", returns=returns)(MANY)
    assert isinstance(kept, RemoteObject)
    assert remote("size")(kept) == MANY
    with pytest.raises(CrossingError, match=TOO_LARGE):
        kept.fetch()


def test_a_changed_argument_has_the_same_limit(remote: Offloaded) -> None:
    things = [1]
    with pytest.raises(CrossingError, match=rf"\b{LIMIT}\b"):
        remote("grow", mutates=("things",))(things, MANY)
    assert things == [1]


def test_a_generator_ends_with_it_after_what_came_before(remote: Offloaded) -> None:
    values = remote("several")(MANY)
    assert next(values) == 1
    with pytest.raises(CrossingError, match=TOO_LARGE):
        next(values)
    # What is too large together travels one by one.
    assert sum(value.sum() for value in list(remote("several")(MANY // 3))[1:]) == MANY // 3 * 3


def test_arguments_travel_in_pages_however_large(remote: Offloaded) -> None:
    assert remote("size")(np.ones(MANY)) == MANY


def test_callbacks_too(remote: Offloaded, monkeypatch: pytest.MonkeyPatch) -> None:
    assert remote("offer")(lambda value: value.size, 1000) == 1000
    with pytest.raises(CrossingError, match=rf"\b{LIMIT}\b"):
        remote("offer")(lambda value: value.size, MANY)
    assert remote("fetch")(lambda: np.ones(MANY)) == MANY
    monkeypatch.setattr(pages, "LARGEST", LIMIT)
    with pytest.raises(CrossingError, match=TOO_LARGE):
        remote("fetch")(lambda: np.ones(MANY))
