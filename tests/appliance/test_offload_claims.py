"""Which kind of session a GPUClaim has on an appliance: that of its mode, and no other."""

from __future__ import annotations

from typing import Any

import pytest

from remotegpu.api.claims import Mode
from remotegpu.appliance.shares.claims import BadClaimError, claim_of_appliance, refusal_of_mode


def stored(**spec: Any) -> dict[str, Any]:
    share = {"appliance": "a", "node": "n", "gpu": "GPU-1", "model": "m", "memory": 1, "milli": 1}
    return {
        "metadata": {"name": "fit", "namespace": "team", "uid": "u"},
        "spec": {"fraction": "0.5", **spec},
        "status": {"phase": "Allocated", "allocations": [share]},
    }


@pytest.mark.parametrize(
    ("spec", "offload", "words"),
    [
        ({}, False, ""),
        ({"mode": "driver"}, False, ""),
        ({"mode": "offload"}, True, ""),
        ({}, True, "claim team/fit has mode driver, which serves CUDA and runs no Python: add annotation"),
        ({"mode": "offload"}, False, "claim team/fit has mode offload, which runs Python and serves no CUDA: leave"),
    ],
)
def test_a_session_is_of_the_kind_that_its_claim_is_for(spec: dict[str, Any], offload: bool, words: str) -> None:
    refusal = refusal_of_mode(claim_of_appliance(stored(**spec), "a"), offload=offload)
    assert refusal.startswith(words) and bool(refusal) == bool(words)


def test_outside_of_kubernetes_a_lease_serves_both() -> None:
    assert refusal_of_mode(None, offload=True) == refusal_of_mode(None, offload=False) == ""


def test_a_claim_of_a_later_version_is_reported_and_not_guessed_at() -> None:
    assert claim_of_appliance(stored(), "a") is not None
    claim = claim_of_appliance(stored(mode="offload"), "a")
    assert claim is not None and claim.mode is Mode.OFFLOAD
    with pytest.raises(BadClaimError, match="quantum"):
        claim_of_appliance(stored(mode="quantum"), "a")
