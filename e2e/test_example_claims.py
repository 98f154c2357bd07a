"""Claims made by hand: by memory and by model, used by several pods, kept between them."""

from __future__ import annotations

import pytest
import yaml
from support.checker import Checker
from support.kubectl import ROOT, Object
from support.manifests import claim, pod, program
from support.namespace import Namespace, gated
from support.system import until

from remotegpu.api.kubernetes import CLAIM_ANNOTATION, CLAIMS

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

EXAMPLE = ROOT / "examples" / "06-claims"


def status(namespace: Namespace, name: str, phase: str) -> Object:
    def reached() -> Object | None:
        found = namespace.get(CLAIMS, name)
        return found["status"] if found and found["status"]["phase"] == phase else None

    reached_status: Object = until(reached, 30, f"claim {name} is {phase}")
    return reached_status


def test_pods_share_a_claim_and_it_stays_when_they_are_gone(namespace: Namespace, checker: Checker) -> None:
    namespace("create", "configmap", "fill", f"--from-file={EXAMPLE / 'fill.py'}")
    namespace("apply", "-f", str(EXAMPLE / "claims.yaml"))
    by_memory = status(namespace, "by-memory", "Allocated")
    by_model = status(namespace, "by-model", "Allocated")
    assert by_memory["allocations"][0]["memory"] == 1 << 30
    assert by_model["milli"] == 100
    assert "software" in by_model["gpus"]

    namespace("apply", "-f", str(EXAMPLE / "pods.yaml"))
    said = [namespace.wait_for_line(name, " 614 MiB", seconds=90) for name in ("first", "second")]
    assert sorted(said) == ["gets no 614 MiB: CUDA_ERROR_OUT_OF_MEMORY", "has 614 MiB"]
    for name in ("first", "second"):
        assert "1024 MiB in all" in namespace.logs(name)
        assert namespace.claim_of(name) is None, "a pod that names a claim has no other one"
    users = status(namespace, "by-memory", "Allocated")["consumers"]
    assert sorted(user["name"] for user in users) == ["first", "second"]
    checker.settled(20)

    namespace("delete", "pod", "first", "second", "--now", seconds=120)
    until(lambda: not status(namespace, "by-memory", "Allocated")["consumers"], 20, "nobody uses the claim")
    assert status(namespace, "by-memory", "Allocated")["allocations"] == by_memory["allocations"]

    third = next(yaml.safe_load_all((EXAMPLE / "pods.yaml").read_text()))
    third["metadata"]["name"] = "third"
    namespace.apply(third)
    assert namespace.wait_for_line("third", " 614 MiB", seconds=90) == "has 614 MiB"

    # The claim's memory is freed with it, whichever pods use it.
    namespace("delete", CLAIMS, "by-memory", "by-model")
    checker.settled(20)


def test_a_claim_waits_and_says_why(namespace: Namespace, checker: Checker) -> None:
    for name, reason, sentence, spec in (
        ("model", "NoMatchingGPU", "pool default has no GPU of model H100", {"fraction": "0.1", "model": "H100"}),
        ("pool", "NoSuchPool", "there is no GPUPool elsewhere", {"fraction": "0.1", "pool": "elsewhere"}),
        ("memory", "TooLarge", "1.0 TiB of a GPU is more than pool default ever has", {"memory": "1Ti"}),
        ("count", "TooLarge", "64 GPUs were asked for, pool default has ", {"fraction": 64}),
    ):
        namespace.apply(claim(name, **spec))

        def told(name: str = name, reason: str = reason) -> Object | None:
            found = namespace.get(CLAIMS, name)
            return found["status"] if found and found["status"]["reason"] == reason else None

        found: Object = until(told, 20, f"claim {name} says {reason}")
        assert found["phase"] == "Pending"
        assert sentence in found["message"]
        assert sentence in namespace.describe(CLAIMS, name)
    # A claim that waits for something else holds up no other claim.
    namespace.apply(claim("small", fraction="0.1"))
    status(namespace, "small", "Allocated")
    checker.settled(20)


def test_a_pod_waits_for_the_claim_that_it_names(namespace: Namespace, checker: Checker) -> None:
    namespace.create(pod("early", program("vector_add.py"), annotations={CLAIM_ANNOTATION: "later"}))

    def told() -> bool:
        return "there is no GPUClaim later" in namespace.describe("pod", "early")

    until(told, 20, "the pod's events say that there is no such claim")
    waiting = namespace.get("pod", "early")
    assert waiting is not None
    assert gated(waiting)
    namespace.apply(claim("later", memory="64Mi"))
    namespace.wait_for_phase("early", "Succeeded", seconds=90)
    assert "ok" in namespace.logs("early")
    until(lambda: not status(namespace, "later", "Allocated")["consumers"], 20, "a pod that has ended uses nothing")
    checker.settled(20)
