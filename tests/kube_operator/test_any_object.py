"""A stored claim or pool with any content does no harm to others (property tests).

Operator, appliance, dashboard and command line serve the other objects, and print no control characters.
"""

from __future__ import annotations

import contextlib
import datetime
import unicodedata
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.any_object import objects

from remotegpu.api.claims import GPUClaim
from remotegpu.api.objects import readable
from remotegpu.api.pools import GPUPool
from remotegpu.appliance.shares.claims import BadClaimError, claim_of_appliance
from remotegpu.cli import exits
from remotegpu.cli.cluster import claims as cli
from remotegpu.cli.output import console
from remotegpu_operator.allocation import request_of
from remotegpu_operator.builders.appliances import plans
from remotegpu_operator.claims.why import explain
from remotegpu_operator.dashboard.snapshot import snapshot_of

NOW = datetime.datetime(2026, 1, 2, 12, tzinfo=datetime.UTC)
CLAIMS, POOLS = objects("GPUClaim", namespaced=True), objects("GPUPool", namespaced=False)
Object = dict[str, Any]
GOOD: Object = {
    "metadata": {"namespace": "good", "name": "claim", "uid": "good", "creationTimestamp": "2026-01-01T00:00:00Z"},
    "spec": {"fraction": "0.25"},
}
thoroughly = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def stored(claims: list[Object], pools: list[Object]) -> dict[str, list[Object]]:
    return {"gpuclaims": claims, "gpupools": pools, "resourcequotas": [], "priorityclasses": [], "pods": []}


@thoroughly
@given(CLAIMS, st.text(max_size=5))
def test_a_claim_is_read_or_refused(claim: Object, appliance: str) -> None:
    with contextlib.suppress(KeyError, ValueError):
        request_of(GPUClaim.from_object(claim))
    with contextlib.suppress(BadClaimError):
        claim_of_appliance(claim, appliance)


@thoroughly
@given(POOLS)
def test_a_pool_is_read_or_refused(stored: Object) -> None:
    for pool in readable(GPUPool.from_object, [stored]):
        plans(pool, [])


@thoroughly
@given(CLAIMS, POOLS)
def test_the_others_are_shown_and_explained(claim: Object, pool: Object) -> None:
    all_of_them = stored([claim, GOOD], [pool])
    assert "good/claim" in snapshot_of(all_of_them, NOW)["claims"]
    assert explain("good", "claim", all_of_them, NOW).claim == "good/claim"
    with contextlib.suppress(ValueError):
        explain(claim["metadata"]["namespace"], claim["metadata"]["name"], all_of_them, NOW)


class Stored:
    """A cluster that has one claim."""

    def __init__(self, claim: Object) -> None:
        self._claim = claim

    def get(self, path: str) -> Object:
        return self._claim

    def list(self, path: str, selector: str = "", *, fields: str = "") -> list[Object]:
        return [self._claim] if path.endswith("gpuclaims") else []


@thoroughly
@given(CLAIMS)
def test_nothing_of_a_claim_is_printed_raw(claim: Object) -> None:
    out, cluster = console(), Stored(claim)
    with out.capture() as captured, contextlib.suppress(exits.CliError):
        cli.print_story(out, cluster, "one", "claim")  # type: ignore[arg-type]
    printed = captured.get() + cli._listing(cluster, "", as_json=False)  # type: ignore[arg-type]
    raw = {each for each in printed if unicodedata.category(each) in ("Cc", "Cf") and each != "\n"}
    assert not raw, printed
