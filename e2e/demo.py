"""Example 1 on the cluster of `make cluster`, as a person would do it: helm, kubectl apply, kubectl logs."""

from __future__ import annotations

import subprocess
import sys

from support.installation import Installation
from support.kubectl import ROOT, Kubectl, KubectlError
from support.namespace import Namespace
from support.system import until

EXAMPLE = ROOT / "examples" / "01-digits"
NAMESPACE = {
    "apiVersion": "v1",
    "kind": "Namespace",
    "metadata": {"name": "demo", "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
}


def say(text: str) -> None:
    print(f"\n==> {text}", flush=True)


def show(kubectl: Kubectl, *arguments: str) -> None:
    print(f"$ kubectl {' '.join(arguments)}", flush=True)
    subprocess.run(kubectl.command(*arguments), check=True)


def main() -> None:
    kubectl = Kubectl.of_environment()
    installation = Installation(kubectl)
    say("helm upgrade --install remotegpu charts/remotegpu")
    installation.upgrade()
    installation.wait_until_ready()

    say("A pod with remotegpu/fraction: 0.25, in a namespace that enforces the `restricted` standard")
    kubectl.apply(NAMESPACE)
    demo = Namespace(kubectl, "demo")
    demo.delete("pod", "digits", now=True)
    show(kubectl, "apply", "-n", "demo", "-k", str(EXAMPLE.relative_to(ROOT)))
    until(lambda: demo.phase("digits") != "Pending", 60, "the pod starts")
    show(kubectl, "get", "gpupools,gpuclaims", "-n", "demo")
    show(kubectl, "logs", "-n", "demo", "--follow", "digits")
    demo.wait_for_phase("digits", "Succeeded", seconds=30)

    say("The pod has ended, its share is free again")
    until(lambda: not demo.claims(), 10, "the claim is gone")
    show(kubectl, "get", "gpupools,gpuclaims", "-n", "demo")


if __name__ == "__main__":
    try:
        main()
    except (AssertionError, KubectlError) as error:
        sys.exit(f"demo: {error}; the parts' logs: kubectl -n remotegpu-system logs deployment/remotegpu-operator")
