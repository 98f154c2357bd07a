"""A claim moves to another appliance while its pod computes: it names that one, or its appliance is replaced."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import yaml
from support.kubectl import ROOT, Kubectl, Object
from support.manifests import pod
from support.namespace import Namespace
from support.system import until

from remotegpu.api.kubernetes import CLAIMS, MOVABLE_ANNOTATION, POOL_ANNOTATION, POOLS

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool of one GPU on each of two nodes."""

    kubectl: Kubectl
    name: str

    def appliances(self) -> dict[str, Object]:
        status = (self.kubectl.get(POOLS, self.name) or {}).get("status") or {}
        return {each["name"]: each for each in status.get("appliances") or ()}

    def is_ready(self) -> bool:
        phases = [each["phase"] for each in self.appliances().values()]
        return phases == ["Ready", "Ready"]

    def pod(self, name: str, fraction: str, *command: str) -> Object:
        annotations = {POOL_ANNOTATION: self.name, MOVABLE_ANNOTATION: "true"}
        return pod(name, ["python", "-u", *command], fraction=fraction, annotations=annotations)


@pytest.fixture
def two_gpus(kubectl: Kubectl, namespace: Namespace) -> Iterator[Pool]:
    manifest = yaml.safe_load((ROOT / "examples" / "04-sharing" / "pool.yaml").read_text())
    name = manifest["metadata"]["name"] = "moving"
    manifest["spec"]["nodeSelector"] = {"kubernetes.io/os": "linux"}
    kubectl.apply(manifest)
    pool = Pool(kubectl, name)
    until(pool.is_ready, 120, "its appliances are ready")
    yield pool
    namespace("delete", "pod", "--all", "--now", seconds=120)
    kubectl("delete", POOLS, name, seconds=120)


def status(namespace: Namespace, claim: str) -> Object:
    found = namespace.get(CLAIMS, claim)
    assert found
    return dict(found["status"])


def place(namespace: Namespace, claim: str) -> str:
    (allocation,) = status(namespace, claim)["allocations"]
    return str(allocation["appliance"])


def computing(namespace: Namespace, pool: Pool, rounds: int) -> str:
    """Starts a pod that computes; returns the name of its claim."""
    namespace.create(pool.pod("trainer", "0.75", "/programs/counting.py", str(rounds)))
    namespace.wait_for_line("trainer", "checked 10", seconds=90)
    (claim,) = [each["metadata"]["name"] for each in namespace.claims()]
    return str(claim)


def send(namespace: Namespace, claim: str, appliance: str) -> None:
    namespace("patch", CLAIMS, claim, "--type=merge", "-p", f'{{"spec": {{"appliance": "{appliance}"}}}}')


def test_a_claim_moves_to_the_appliance_that_it_names_and_back(namespace: Namespace, two_gpus: Pool) -> None:
    claim = computing(namespace, two_gpus, 1000)
    first = place(namespace, claim)
    (second,) = two_gpus.appliances().keys() - {first}
    send(namespace, claim, second)
    until(lambda: place(namespace, claim) == second, 60, "the claim is on the other appliance")
    until(lambda: "has moved" in namespace.logs("trainer"), 20, "its program says so")
    # The present user of the first GPU keeps the claim from coming back, until it ends.
    namespace.create(two_gpus.pod("visitor", "0.9", "/programs/counting.py", "100000"))
    namespace.wait_for_line("visitor", "checked 10", seconds=90)
    send(namespace, claim, first)
    until(lambda: status(namespace, claim)["reason"] == "NotMoved", 30, "it cannot go back")
    assert "NoRoom" in status(namespace, claim)["message"]
    namespace("delete", "pod", "visitor", "--now", seconds=60)
    until(lambda: place(namespace, claim) == first, 90, "it is back")
    # A program of the pod that starts now finds it there.
    assert "right" in namespace("exec", "trainer", "--", "python", "/programs/counting.py", "10", seconds=60)
    namespace.wait_for_line("trainer", "right", seconds=120)
    until(lambda: not namespace.claims(), 20, "completed pods hold nothing")


def test_an_appliance_is_replaced_while_programs_that_were_on_it_compute(
    namespace: Namespace, two_gpus: Pool, kubectl: Kubectl
) -> None:
    claim = computing(namespace, two_gpus, 1200)
    before = two_gpus.appliances().keys()
    pods = {each["metadata"]["uid"] for each in appliance_pods(kubectl, two_gpus.name)}
    # The operator that began it may go.
    kubectl("patch", POOLS, two_gpus.name, "--type=merge", "-p", '{"spec": {"temporaryStorage": "1Gi"}}')
    until(lambda: status(namespace, claim).get("move") or "has moved" in namespace.logs("trainer"), 90, "it moves")
    kubectl("-n", "remotegpu-system", "delete", "pod", "-l", "app.kubernetes.io/component=operator", "--wait=false")

    def replaced() -> bool:
        now = appliance_pods(kubectl, two_gpus.name)
        return not pods & {each["metadata"]["uid"] for each in now} and two_gpus.is_ready()

    until(replaced, 180, "both appliances are replaced")
    assert namespace.phase("trainer") == "Running", "and its program has not ended"
    assert before == two_gpus.appliances().keys()
    until(lambda: status(namespace, claim)["reason"] == "Allocated", 30, "its claim is well")
    namespace.wait_for_line("trainer", "right", seconds=120)


def appliance_pods(kubectl: Kubectl, pool: str) -> list[Object]:
    return kubectl.all("pods", "remotegpu-system", {"remotegpu.io/pool": pool})


def test_a_claim_gets_more_of_its_gpu_and_gives_back_what_its_programs_do_not_have(
    namespace: Namespace, two_gpus: Pool
) -> None:
    """Each GPU has 1 GiB; the programs of the pod have some MiB of it."""
    claim = computing(namespace, two_gpus, 1000)

    def becomes(fraction: str, reason: str, milli: int) -> str:
        namespace("patch", CLAIMS, claim, "--type=merge", "-p", f'{{"spec": {{"fraction": "{fraction}"}}}}')

        def reached() -> bool:
            now = status(namespace, claim)
            return (now["reason"], now["milli"]) == (reason, milli)

        until(reached, 40, f"its share is {milli} thousandths")
        # The size that a program sees which starts now.
        return namespace("exec", "trainer", "--", "nvidia-smi", seconds=60)

    assert " 972MiB |" in becomes("0.95", "Allocated", 950)
    assert " 102MiB |" in becomes("0.1", "Allocated", 100)
    assert " 102MiB |" in becomes("0.002", "NotResized", 100)
    assert "InUse" in status(namespace, claim)["message"]
    becomes("0.1", "Allocated", 100)
    namespace.wait_for_line("trainer", "right", seconds=120)


def test_two_programs_are_packed_onto_one_appliance_while_they_run(
    namespace: Namespace, two_gpus: Pool, kubectl: Kubectl
) -> None:
    """Each has half of the GPU of its appliance at most. Both end with the sums that NumPy has."""
    kubectl("patch", POOLS, two_gpus.name, "--type=merge", "-p", '{"spec": {"pack": {"leaveAlone": "0s"}}}')
    rounds = 1200
    for name, fraction in (("first", "0.3"), ("filler", "0.5"), ("second", "0.4")):
        namespace.create(two_gpus.pod(name, fraction, "/programs/counting.py", str(rounds)))
        namespace.wait_for_line(name, "checked 10", seconds=90)
    namespace("delete", "pod", "filler", "--now", seconds=60)
    until(lambda: len(namespace.claims()) == 2, 60, "the claim of the filler is gone")
    claims = {each["spec"]["pod"]["name"]: each["metadata"]["name"] for each in namespace.claims()}
    assert len({place(namespace, claim) for claim in claims.values()}) == 2

    def ask(request: str, phase: str) -> Object:
        kubectl("annotate", POOLS, two_gpus.name, f"remotegpu.io/pack={request}", "--overwrite")

        def answer() -> Object:
            return dict(((kubectl.get(POOLS, two_gpus.name) or {})["status"]).get("pack") or {})

        until(lambda: (answer().get("request"), answer().get("phase")) == (request, phase), 120, f"it is {phase}")
        return answer()

    planned = ask("dry-run-1", "Planned")
    assert (planned["gpusBefore"], planned["gpusAfter"], len(planned["moves"])) == (2, 1, 1)
    packed = ask("now-1", "Done")
    assert [each["result"] for each in packed["moves"]] == ["Moved"], packed
    assert len({place(namespace, claim) for claim in claims.values()}) == 1
    moved = next(name for name, claim in claims.items() if packed["moves"][0]["claim"].endswith(f"/{claim}"))
    assert "has moved" in namespace.logs(moved)
    steps, sums = np.random.default_rng(1).random(1 << 20, dtype=np.float32), np.zeros(1 << 20, np.float32)
    for _ in range(rounds):
        sums += steps
    digest = hashlib.sha256(sums.tobytes()).hexdigest()
    for name in claims:
        namespace.wait_for_line(name, "right", seconds=180)
        assert f"digest {digest}" in namespace.logs(name)


def test_a_suspended_claim_moves_and_stays_suspended(namespace: Namespace, two_gpus: Pool) -> None:
    claim = computing(namespace, two_gpus, 400)
    first = place(namespace, claim)
    namespace("patch", CLAIMS, claim, "--type=merge", "-p", '{"spec": {"suspend": true}}')
    until(lambda: status(namespace, claim)["phase"] == "Suspended", 60, "it is suspended")
    (second,) = two_gpus.appliances().keys() - {first}
    send(namespace, claim, second)

    def is_suspended_there() -> bool:
        now = status(namespace, claim)
        return (place(namespace, claim), now["phase"]) == (second, "Suspended") and "move" not in now

    until(is_suspended_there, 90, "it is suspended on the other appliance")
    namespace("patch", CLAIMS, claim, "--type=merge", "-p", '{"spec": {"suspend": false}}')
    namespace.wait_for_line("trainer", "right", seconds=120)
