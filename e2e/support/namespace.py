"""A namespace of one test: its objects, the output of its pods, and their results."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, Final

from support.kubectl import ROOT, Kubectl, KubectlError, Object
from support.system import until

from remotegpu.api.kubernetes import CLAIMS, GATE

TEST_PROGRAMS: Final = (
    *(ROOT / "tests" / "programs" / name for name in ("cu.py", "kernels.ptx", "shared_copies.py", "vector_add.py")),
    *sorted((ROOT / "e2e" / "programs").glob("*.py")),
)
RESTRICTED: Final = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}


@contextlib.contextmanager
def temporary(kubectl: Kubectl, labels: Mapping[str, str] = RESTRICTED) -> Iterator[Namespace]:
    """Makes a namespace with the test programs in the ConfigMap `programs`. Does not wait for its deletion."""
    name = f"e2e-{uuid.uuid4().hex[:8]}"
    kubectl.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": dict(labels)}})
    try:
        kubectl("create", "configmap", "programs", "-n", name, *(f"--from-file={file}" for file in TEST_PROGRAMS))
        yield Namespace(kubectl, name)
    finally:
        kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")


class Namespace:
    def __init__(self, kubectl: Kubectl, name: str) -> None:
        self.kubectl = kubectl
        self.name = name

    def __call__(self, *arguments: str, stdin: str | None = None, seconds: float = 60) -> str:
        """kubectl in this namespace."""
        return self.kubectl("-n", self.name, *arguments, stdin=stdin, seconds=seconds)

    def refusal(self, *arguments: str, stdin: str | None = None) -> str:
        return self.kubectl.refusal("-n", self.name, *arguments, stdin=stdin)

    def apply(self, *objects: Object) -> None:
        self.kubectl.apply(*objects, namespace=self.name)

    def create(self, *objects: Object, seconds: float = 60) -> None:
        self.kubectl.create(*objects, namespace=self.name, seconds=seconds)

    def get(self, kind: str, name: str) -> Object | None:
        return self.kubectl.get(kind, name, self.name)

    def all(self, kind: str, selector: dict[str, str] | None = None) -> list[Object]:
        return self.kubectl.all(kind, self.name, selector)

    def pods(self, **labels: str) -> list[Object]:
        return self.all("pods", labels)

    def delete(self, kind: str, name: str, *, now: bool = False) -> None:
        """Delete and wait until it is gone; `now` gives a pod no time to end."""
        self("delete", kind, name, "--ignore-not-found", *(["--now"] if now else []), seconds=120)

    def logs(self, pod: str) -> str:
        """Returns the pod's output so far; empty while there is no container."""
        with contextlib.suppress(KubectlError):
            return self("logs", pod, "--all-containers")
        return ""

    def phase(self, pod: str) -> str:
        found = self.get("pod", pod)
        return found["status"].get("phase", "Pending") if found else "Gone"

    def wait_for_phase(self, pod: str, *phases: str, seconds: float = 60) -> str:
        """Waits for the first of `phases` that the pod reaches. Fails at once if the pod failed instead."""

        def reached() -> str | None:
            phase = self.phase(pod)
            if phase == "Failed" and "Failed" not in phases:
                raise AssertionError(f"pod {pod} failed: {self.logs(pod)}\n{self.describe('pod', pod)}")
            return phase if phase in phases else None

        try:
            value: str = until(reached, seconds, f"pod {pod} is {' or '.join(phases)}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.logs(pod)}\n{self.describe('pod', pod)}") from None
        return value

    def run(self, pod: Object, seconds: float = 90) -> str:
        """Create a pod, wait until it has succeeded, and return what it printed."""
        self.create(pod)
        name = pod["metadata"]["name"]
        self.wait_for_phase(name, "Succeeded", seconds=seconds)
        return self.logs(name)

    def wait_for_line(self, pod: str, text: str, seconds: float = 60) -> str:
        """Waits for a line of the pod's log that contains `text`, and returns the first."""

        def seen() -> str | None:
            ended = self.phase(pod) in {"Failed", "Succeeded"}
            log = self.logs(pod)
            found = next((line for line in log.splitlines() if text in line), None)
            assert found or not ended, f"pod {pod} has ended: {log}\n{self.describe('pod', pod)}"
            return found

        value: str = until(seen, seconds, f"pod {pod} prints {text!r}")
        return value

    def describe(self, kind: str, name: str) -> str:
        with contextlib.suppress(KubectlError):
            return self("describe", kind, name)
        return ""

    def claims(self) -> list[Object]:
        return self.all(CLAIMS)

    def claim_of(self, pod: str) -> Object | None:
        """The claim that the operator made for this pod."""
        found = self.get("pod", pod)
        uid = found["metadata"]["uid"] if found else ""
        return next((c for c in self.claims() if c["spec"].get("pod", {}).get("uid") == uid), None)

    def wait_for_claim(self, pod: str, phase: str, seconds: float = 30) -> Object:
        def reached() -> Object | None:
            claim = self.claim_of(pod)
            return claim if claim and claim["status"]["phase"] == phase else None

        value: Object = until(reached, seconds, f"the claim of pod {pod} is {phase}")
        return value


def gated(pod: Object) -> bool:
    return any(gate["name"] == GATE for gate in pod["spec"].get("schedulingGates", []))


def condition(found: Object, name: str) -> dict[str, Any]:
    """The condition of this type, empty if there is none."""
    return next((c for c in found.get("status", {}).get("conditions", []) if c["type"] == name), {})
