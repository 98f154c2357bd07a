"""Tests of the certificate authority in Secrets, with a real API server and a clock that the tests set."""

from __future__ import annotations

import asyncio
import base64
import datetime

import pytest
from support.kubelab import SYSTEM, Kube

from remotegpu_operator.appliances.authority import AuthorityError, CertificateAuthority
from remotegpu_operator.appliances.certificates import LEAF_LIFETIME, OVERLAP, Pair, new_authority
from remotegpu_operator.cluster.kube import Api, configuration

SECRETS = f"/api/v1/namespaces/{SYSTEM}/secrets"
WEBHOOK = "remotegpu-webhook-tls"


class Clock:
    def __init__(self) -> None:
        self.now = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)

    def __call__(self) -> datetime.datetime:
        return self.now


def data(kube: Kube, name: str) -> dict[str, str]:
    stored = kube.get(f"{SECRETS}/{name}")["data"]
    return {key: base64.b64decode(value).decode() for key, value in stored.items()}


def put(kube: Kube, name: str, pair: Pair) -> None:
    body = {"metadata": {"name": name}, "stringData": {"tls.crt": pair.certificate, "tls.key": pair.key}}
    if kube.find(f"{SECRETS}/{name}") is None:
        kube("POST", SECRETS, body)
    else:
        kube.merge(f"{SECRETS}/{name}", body)


async def refreshed(kube: Kube, clock: Clock, *times: datetime.timedelta, generation: str, given: str = "") -> str:
    """Runs a new leader, which refreshes the authority now and after each of `times`. Returns the leader's bundle."""
    async with Api(await configuration(kube.kubeconfig)) as api:
        authority = CertificateAuthority(api, SYSTEM, generation=generation, given=given, clock=clock)
        for time in (datetime.timedelta(0), *times):
            clock.now += time
            await authority.refresh([])
        return authority.bundle


def test_leaders_go_on_where_the_one_before_them_was(kube: Kube) -> None:
    async def follow() -> None:
        clock = Clock()
        first = await refreshed(kube, clock, generation="1")
        leaf = data(kube, WEBHOOK)["tls.crt"]
        assert await refreshed(kube, clock, generation="1") == first
        assert data(kube, WEBHOOK)["tls.crt"] == leaf, "nothing is made anew without a reason"
        # A rotation: the new authority is first added to the bundle, and signs later.
        both = await refreshed(kube, clock, generation="2")
        assert first in both
        assert both != first
        assert data(kube, WEBHOOK)["tls.crt"] == leaf
        assert await refreshed(kube, clock, OVERLAP / 2, generation="2") == both
        await refreshed(kube, clock, OVERLAP, generation="2")
        assert data(kube, WEBHOOK)["tls.crt"] != leaf
        after = await refreshed(kube, clock, OVERLAP, OVERLAP, OVERLAP, generation="2")
        assert first not in after
        assert after in both
        assert data(kube, "remotegpu-ca")["bundle.crt"] == after

    asyncio.run(follow())


def test_the_webhooks_certificate_is_renewed_in_time(kube: Kube) -> None:
    async def follow() -> None:
        clock = Clock()
        await refreshed(kube, clock, generation="1")
        leaf = data(kube, WEBHOOK)
        await refreshed(kube, clock, LEAF_LIFETIME / 2, generation="1")
        assert data(kube, WEBHOOK) == leaf
        await refreshed(kube, clock, LEAF_LIFETIME / 4, generation="1")
        assert data(kube, WEBHOOK) != leaf

    asyncio.run(follow())


def test_an_authority_that_somebody_else_keeps_in_a_secret(kube: Kube) -> None:
    async def follow() -> None:
        clock = Clock()
        with pytest.raises(AuthorityError, match="from-elsewhere"):
            await refreshed(kube, clock, generation="1", given="from-elsewhere")
        given, later = new_authority(clock.now), new_authority(clock.now + datetime.timedelta(seconds=1))
        put(kube, "from-elsewhere", given)
        assert await refreshed(kube, clock, generation="1", given="from-elsewhere") == given.certificate
        put(kube, "from-elsewhere", later)
        bundle = await refreshed(kube, clock, generation="1", given="from-elsewhere")
        assert bundle == given.certificate + later.certificate
        bundle = await refreshed(kube, clock, *[OVERLAP] * 4, generation="1", given="from-elsewhere")
        assert bundle == later.certificate

    asyncio.run(follow())
