"""User mistakes: each is refused with a helpful sentence, or handled exactly right; and nothing is left behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from support.checker import Checker
from support.manifests import pod, program
from support.namespace import Namespace, gated
from support.system import until

from remotegpu.api.kubernetes import CLIENT, FRACTION, MILLI, SESSION_ANNOTATION

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

Change = Callable[[dict[str, Any]], object]


def limits(made: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = made["spec"]["containers"][0]["resources"].setdefault("limits", {})
    return found


# The mistake; how the pod gets it; words that the refusal must contain, one of them the value or name at fault.
REFUSED: dict[str, tuple[Change, tuple[str, ...]]] = {
    "0": (lambda p: limits(p).update({FRACTION: 0}), (FRACTION, "0", "greater than 0|at least|more than 0|0.001")),
    "-1": (lambda p: limits(p).update({FRACTION: -1}), (FRACTION, "-1")),
    "1.5": (lambda p: limits(p).update({FRACTION: 1.5}), (FRACTION, "1.5", "whole")),
    # The API server's own answer: it parses quantities before it calls any webhook.
    "abc": (lambda p: limits(p).update({FRACTION: "abc"}), ("quantities must match",)),
    "request differs from limit": (
        lambda p: p["spec"]["containers"][0].update(
            resources={"limits": {FRACTION: 0.5}, "requests": {FRACTION: 0.25}}
        ),
        ("request", "limit"),
    ),
    "whole-number request differs from limit": (
        lambda p: p["spec"]["containers"][0].update(resources={"limits": {MILLI: 500}, "requests": {MILLI: 250}}),
        ("request", "limit"),
    ),
    "request without limit": (
        lambda p: p["spec"]["containers"][0].update(resources={"requests": {MILLI: 250}}),
        ("limit",),
    ),
    "1.5 in thousandths": (
        lambda p: p["spec"]["containers"][0].update(resources={"limits": {MILLI: 1500}}),
        ("1500|1.5", "whole|multiple"),
    ),
    "nodeName": (lambda p: p["spec"].update(nodeName="node-a"), ("nodeName",)),
    "unknown annotation": (
        lambda p: p["metadata"]["annotations"].update({"remotegpu.io/poool": "default"}),
        ("remotegpu.io/poool", "remotegpu.io/pool"),
    ),
    "unknown resource": (lambda p: limits(p).update({"remotegpu/gpu": 1}), ("remotegpu/gpu", FRACTION)),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_the_sentence_that_helps(case: str, namespace: Namespace) -> None:
    change, words = REFUSED[case]
    made = pod("wrong", ["true"], fraction="0.25")
    change(made)
    sentence = namespace.refusal("create", "-f", "-", stdin=json.dumps(made))
    for alternatives in words:
        assert any(word in sentence for word in alternatives.split("|")), sentence
    assert not namespace.pods()
    assert not namespace.claims()


def test_a_pod_without_a_share_cannot_say_that_it_has_one(namespace: Namespace) -> None:
    made = pod("pretends", ["true"], annotations={SESSION_ANNOTATION: "{}"})
    assert SESSION_ANNOTATION in namespace.refusal("create", "-f", "-", stdin=json.dumps(made))


def test_both_names_mean_the_fraction(namespace: Namespace) -> None:
    """A LimitRange puts the whole number next to what the user wrote; the user's value counts."""
    made = pod("both", ["true"], limits={FRACTION: "0.25", MILLI: 500})
    namespace.create(made)
    found = namespace.get("pod", "both")
    assert found
    assert limits(found) == {MILLI: "250"}
    assert found["spec"]["containers"][0]["resources"]["requests"] == {MILLI: "250"}


def test_a_fourth_decimal_is_rounded_up(namespace: Namespace) -> None:
    """The API server rounds it, as for every resource, before any other component sees the pod."""
    namespace.create(pod("little", ["true"], fraction="0.0001"))
    found = namespace.get("pod", "little")
    assert found
    assert limits(found) == {MILLI: "1"}


def test_the_whole_number_written_by_hand_works(namespace: Namespace) -> None:
    assert "ok" in namespace.run(pod("by-hand", program("vector_add.py"), limits={MILLI: 250}))


def test_a_share_by_memory_gets_exactly_that_memory(namespace: Namespace) -> None:
    made = pod("memory", program("limit.py"), annotations={"remotegpu.io/memory": "64Mi"})
    seen = json.loads(namespace.run(made).splitlines()[-1])
    assert seen["total"] == 64 << 20
    found = namespace.get("pod", "memory")
    assert found
    assert limits(found) == {CLIENT: "1"}


@pytest.mark.parametrize("how", ["server", "client"])
def test_a_dry_run_leaves_nothing_behind(how: str, namespace: Namespace, checker: Checker) -> None:
    made = pod("dry", ["true"], fraction="0.25")
    namespace("create", f"--dry-run={how}", "-f", "-", stdin=json.dumps(made))
    assert not namespace.pods()
    # A real pod that comes later has its claim; the other would have had one before it.
    namespace.create(pod("real", ["sleep", "60"], fraction="0.25"))
    namespace.wait_for_claim("real", "Allocated")
    assert len(namespace.claims()) == 1
    checker.settled(20)


def test_what_can_never_fit_waits_with_a_reason_and_leaves_nothing(namespace: Namespace) -> None:
    namespace.create(pod("large", ["true"], fraction=50))
    wait_for_reason(namespace, "large", "TooLarge")
    found = namespace.get("pod", "large")
    assert found
    assert gated(found)
    namespace.delete("pod", "large")
    until(lambda: not namespace.claims(), 15, "its claim is gone")


def test_an_unknown_pool_is_a_reason(namespace: Namespace) -> None:
    namespace.create(pod("lost", ["true"], fraction="0.25", annotations={"remotegpu.io/pool": "none-such"}))
    wait_for_reason(namespace, "lost", "NoSuchPool")
    until(lambda: "none-such" in namespace.describe("pod", "lost"), 10, "so does the pod's event")


def wait_for_reason(namespace: Namespace, name: str, reason: str) -> None:
    def given() -> bool:
        claim = namespace.claim_of(name)
        return claim is not None and claim["status"]["reason"] == reason

    until(given, 15, f"the claim of pod {name} is waiting with the reason {reason}")
