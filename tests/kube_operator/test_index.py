"""Tests of the index that finds the pods of a claim, also after a pod names another claim."""

from __future__ import annotations

from typing import cast

from remotegpu.api.claims import GPUClaim
from remotegpu.api.kubernetes import CLAIM_ANNOTATION
from remotegpu_operator.claims.index import Index
from remotegpu_operator.cluster.cache import Cache
from remotegpu_operator.cluster.kube import PODS, Api, Object


def pod(claim: str | None, version: int) -> Object:
    notes = {} if claim is None else {CLAIM_ANNOTATION: claim}
    return {
        "metadata": {
            "name": "p",
            "namespace": "team",
            "uid": "pod",
            "resourceVersion": str(version),
            "annotations": notes,
        },
        "spec": {"containers": []},
        "status": {"phase": "Running"},
    }


def test_a_pod_is_a_user_of_the_claim_that_it_names_now() -> None:
    cache = Cache(cast(Api, None), PODS, lambda *_: None)
    index = Index(cache, lambda _: False)
    one, other = (GPUClaim("team", name, name) for name in ("one", "other"))
    index.put(one)
    index.put(other)

    def note(claim: str | None, version: int, *, there: bool = True) -> tuple[list[str], list[list[str]]]:
        """Stores the pod. Returns the names of the affected claims, and the uids of the users of both claims."""
        cache.store(pod(claim, version))
        found = [each.name for each in index.note_pod(pod(claim, version), there=there)]
        return found, [[each["metadata"]["uid"] for each in index.users(claim)] for claim in (one, other)]

    assert note("one", 1) == (["one"], [["pod"], []])
    assert note("other", 2) == (["one", "other"], [[], ["pod"]])
    assert note(None, 3) == (["other"], [[], []])
    assert note("one", 4) == (["one"], [["pod"], []])
    assert note("one", 5, there=False) == (["one"], [[], []])
