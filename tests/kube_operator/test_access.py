"""Tests of kopf's access to the API server, and of what the process takes from kopf."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import kopf
import pytest
from aiohttp import web
from kubernetes.aio import client as kubernetes_client

from remotegpu_operator import __main__ as entry
from remotegpu_operator.cluster.kube import Api
from remotegpu_operator.handlers import startup
from remotegpu_operator.settings import Settings


def test_a_renewed_token_is_used_at_once_and_a_refusal_gives_a_session_that_kopf_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server accepts one token. `kubernetes` calls a hook before each use of a token, which reads the file."""
    valid, used = ["first"], ["first"]

    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=200 if request.headers["Authorization"] == f"bearer {valid[0]}" else 401)

    def renew(configuration: Any) -> None:
        configuration.api_key["BearerToken"] = f"bearer {used[0]}"

    async def follow() -> None:
        application = web.Application()
        application.router.add_get("/version", answer)
        runner = web.AppRunner(application)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        configuration = kubernetes_client.Configuration()
        configuration.host = f"http://127.0.0.1:{runner.addresses[0][1]}"
        configuration.refresh_api_key_hook = renew
        async with Api(configuration) as api:
            login = functools.partial(cast(Any, startup.access_is_needed), memo=SimpleNamespace(api=api))
            first: kopf.AiohttpSession = await login()

            async def status(access: kopf.AiohttpSession) -> int:
                async with access.aiohttp_session.get(f"{access.server}/version") as response:
                    return response.status

            assert await status(first) == 200
            valid[0] = used[0] = "second"
            assert await status(first) == 200
            valid[0] = "third"
            assert await status(first) == 401
            second = await login()
            assert second != first, "kopf does not take what is equal to a session that was refused"
            used[0] = "third"
            assert await status(second) == 200
            for each in (first, second):
                await each.aiohttp_session.close()
        await runner.cleanup()

    monkeypatch.setattr(startup, "_REFUSED_SECONDS", 0.0)
    asyncio.run(follow())


def test_handlers_always_get_the_process() -> None:
    """If kopf named the argument otherwise, each handler would fail without an end of the process."""
    recall: Any = startup.NoMemories().recall
    assert asyncio.run(recall({}, noticed_by_listing=True, memobase="the process")).memo == "the process"
    with pytest.raises(TypeError, match="memobase"):
        asyncio.run(recall({}, noticed_by_listing=True))


@pytest.fixture
def levels() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("", "kopf", "kopf._cogs.clients.api")]
    before = [each.level for each in loggers]
    yield
    for each, level in zip(loggers, before, strict=True):
        each.setLevel(level)


def test_warnings_of_kopf_are_logged_but_not_each_attempt_of_a_request(
    levels: None, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def run(**_: Any) -> None:
        logging.getLogger("kopf._core.reactor.observation").warning("Unresolved resources cannot be served")
        logging.getLogger("kopf._core.reactor.observation").info("a step")
        logging.getLogger("kopf._cogs.clients.api").error("Request attempt #1/9 failed; will retry")

    monkeypatch.setattr("remotegpu_operator.audit.set_up", lambda: None)
    monkeypatch.setattr(kopf, "run", run)
    monkeypatch.setattr(Settings, "of", lambda: Settings("here", "operator-0", "an image", "Always", folder / "token"))
    assert entry.main() == 0
    assert [each.getMessage() for each in caplog.records] == ["Unresolved resources cannot be served"]
