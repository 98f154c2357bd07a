"""Token reviews: which answers are cached, for how long, and that no peer keeps others from asking."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from remotegpu.appliance.claims.reviews import BusyError, Identity, Reviews, TokenRefusedError, UnreachableError
from remotegpu.appliance.metrics import Counters

POD = Identity("system:serviceaccount:team:default", "pod", "uid")


class ApiServer:
    """Knows one good token, counts the questions, and answers when it is let."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.away = False
        self.answers = asyncio.Event()
        self.answers.set()
        self.now = 1000.0
        self.counters = Counters()
        self.reviews = Reviews(self.review, believe_seconds=600, counters=self.counters, clock=lambda: self.now)

    async def review(self, token: str) -> Identity:
        self.asked.append(token)
        await self.answers.wait()
        if self.away:
            raise UnreachableError("no route")
        if token != "good":
            raise TokenRefusedError("not known")
        return POD

    def counted(self) -> dict[str, tuple[float, float]]:
        """The number of questions by outcome, and the seconds that they took, as Prometheus reads them."""
        text = generate_latest(self.counters.registry).decode()
        families = {each.name: each for each in text_string_to_metric_families(text)}
        samples = families["remotegpu_token_review_seconds"].samples
        count, seconds = (
            {each.labels["outcome"]: each.value for each in samples if each.name.endswith(ending)}
            for ending in ("_count", "_sum")
        )
        return {outcome: (count[outcome], seconds[outcome]) for outcome in count}


async def turns() -> None:
    """Runs the loop often enough that each task that need not wait is done."""
    for _ in range(20):
        await asyncio.sleep(0)


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, 20))


def test_questions_are_counted_by_outcome_and_timed() -> None:
    async def story() -> None:
        server = ApiServer()

        async def ask(token: str) -> None:
            with contextlib.suppress(TokenRefusedError, UnreachableError):
                await server.reviews.identity(token, "10.0.0.1")

        server.answers.clear()
        waiting = asyncio.create_task(ask("good"))
        await turns()
        server.now += 3
        server.answers.set()
        await waiting
        for token in ("good", "bad", "worse", "bad"):
            await ask(token)
        server.away = True
        server.now += 61
        await ask("good")
        await ask("another")
        counted = server.counted()
        assert {outcome: count for outcome, (count, _) in counted.items()} == {
            "confirmed": 1,
            "refused": 2,
            "unanswered": 2,
        }
        assert sum(count for count, _ in counted.values()) == len(server.asked)
        assert counted["confirmed"][1] == 3, "of the same clock"

    run(story())


def test_a_refused_token_is_asked_about_once_in_a_while() -> None:
    async def story() -> None:
        server = ApiServer()
        for _ in range(5):
            with pytest.raises(TokenRefusedError, match="not known"):
                await server.reviews.identity("bad", "10.0.0.1")
        assert server.asked == ["bad"]
        server.now += 6
        with pytest.raises(TokenRefusedError):
            await server.reviews.identity("bad", "10.0.0.1")
        assert server.asked == ["bad", "bad"]

    run(story())


def test_calls_with_one_bad_token_are_one_question() -> None:
    async def story() -> None:
        server = ApiServer()
        calls = [server.reviews.identity("bad", f"10.0.0.{peer}") for peer in range(5)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(result, TokenRefusedError) for result in results)
        assert server.asked == ["bad"]

    run(story())


def test_one_peer_cannot_take_all_places() -> None:
    async def story() -> None:
        server = ApiServer()
        server.answers.clear()
        greedy = [asyncio.create_task(server.reviews.identity(f"bad {n}", "10.0.0.1")) for n in range(100)]
        await turns()
        assert len(server.asked) == 2
        refused = [task for task in greedy if task.done()]
        assert refused and all(isinstance(task.exception(), BusyError) for task in refused), "nor wait without end"
        other = asyncio.create_task(server.reviews.identity("good", "10.0.0.2"))
        await turns()
        assert server.asked[2:] == ["good"]
        server.answers.set()
        assert await other == POD
        await asyncio.gather(*greedy, return_exceptions=True)

    run(story())


def test_an_identity_is_believed_without_the_api_server_for_so_long_and_no_longer() -> None:
    async def story() -> None:
        server = ApiServer()
        assert await server.reviews.identity("good", "10.0.0.1") == POD
        assert not server.reviews.trouble
        server.away = True
        server.now += 599
        assert await server.reviews.identity("good", "10.0.0.1") == POD
        assert "no route" in server.reviews.trouble
        server.now += 2
        with pytest.raises(UnreachableError, match="600 s"):
            await server.reviews.identity("good", "10.0.0.1")
        server.away = False
        assert await server.reviews.identity("good", "10.0.0.1") == POD
        assert not server.reviews.trouble

    run(story())
