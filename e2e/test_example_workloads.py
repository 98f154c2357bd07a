"""Example 2: the same limit in the eight kinds with a pod template, under their own controllers."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml
from support.checker import Checker
from support.kubectl import ROOT, Object
from support.manifests import IMAGE
from support.namespace import Namespace
from support.system import MIB, until

from remotegpu.api.kubernetes import FRACTION, MILLI

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

EXAMPLE = ROOT / "examples" / "03-workloads"
# Objects that controllers make of a template: a new one is a rollout.
REVISIONS = ("replicasets", "controllerrevisions", "pods")
KINDS = tuple(sorted(file.stem for file in EXAMPLE.glob("*.yaml")))


def revisions(namespace: Namespace) -> set[str]:
    return {each["metadata"]["uid"] for kind in REVISIONS for each in namespace.all(kind)}


def templates(namespace: Namespace) -> dict[str, tuple[int, str]]:
    """Generation and resource version of every object of the example."""
    found = {kind: namespace.get(kind, kind) for kind in KINDS}
    return {
        kind: (each["metadata"].get("generation", 0), each["metadata"]["resourceVersion"])
        for kind, each in found.items()
        if each
    }


def logs(namespace: Namespace) -> dict[str, str]:
    """Returns the log of each pod."""
    return {each["metadata"]["name"]: namespace.logs(each["metadata"]["name"]) for each in namespace.pods()}


def test_all_kinds_run_and_are_applied_again_without_a_rollout(namespace: Namespace, checker: Checker) -> None:
    (whole,) = {size // MIB for truth in checker.truths() for size in truth.shareable.values()}
    # One each; as many daemons as nodes; none of the pod template; of the cron job the one that the test starts.
    pods = 6 + len(namespace.kubectl.all("nodes"))
    namespace("apply", "-f", str(EXAMPLE))
    namespace("create", "job", "once", "--from=cronjob/cronjob")

    def all_ran() -> bool:
        found = logs(namespace)
        return len(found) == pods and all("MiB" in text for text in found.values())

    until(all_ran, 150, f"{pods} pods run their program")
    for name, text in logs(namespace).items():
        seen = re.search(r"(\d+) MiB", text)
        assert seen, name
        assert abs(int(seen[1]) - whole // 10) <= 2, name
    namespace("wait", "job/job", "job/once", "--for=condition=complete", "--timeout=60s", seconds=70)
    for kind in ("deployment", "statefulset", "daemonset"):
        namespace("rollout", "status", f"{kind}/{kind}", "--timeout=60s", seconds=70)

    before = (templates(namespace), revisions(namespace))
    assert len(before[0]) == len(KINDS)
    namespace("apply", "-f", str(EXAMPLE))
    assert namespace.kubectl.try_to("diff", "-n", namespace.name, "-f", str(EXAMPLE))[:2] == (0, "")
    assert (templates(namespace), revisions(namespace)) == before
    # From now on by server-side apply, which keeps its own record of who wrote each field.
    namespace("apply", "--server-side", "--force-conflicts", "-f", str(EXAMPLE))
    namespace("apply", "--server-side", "-f", str(EXAMPLE))
    taken_over = templates(namespace)
    namespace("apply", "--server-side", "-f", str(EXAMPLE))
    assert namespace.kubectl.try_to("diff", "--server-side", "-n", namespace.name, "-f", str(EXAMPLE))[:2] == (0, "")
    assert templates(namespace) == taken_over
    assert revisions(namespace) == before[1]

    namespace("delete", "-f", str(EXAMPLE), "--cascade=foreground", seconds=120)
    until(lambda: not namespace.claims(), 30, "nothing is held any more")


def manifest(fraction: float | None) -> str:
    document = yaml.safe_load((EXAMPLE / "deployment.yaml").read_text())
    (container,) = document["spec"]["template"]["spec"]["containers"]
    share: dict[str, Any] = {} if fraction is None else {FRACTION: fraction}
    container["resources"] = {"limits": {"memory": "256Mi", **share}}
    container["command"] = ["sleep", "86400"]
    return json.dumps(document)


def rolled_out(namespace: Namespace) -> Object:
    """Waits until the deployment's pods are those of its template, and returns it."""
    namespace("rollout", "status", "deployment/deployment", "--timeout=90s", seconds=100)
    found = namespace.get("deployment", "deployment")
    assert found
    return found


def shares(namespace: Namespace) -> list[str | None]:
    """Returns the thousandths in the template, and in every pod that stays."""
    template = rolled_out(namespace)["spec"]["template"]["spec"]
    pods = [each for each in namespace.pods(app="deployment") if "deletionTimestamp" not in each["metadata"]]
    specs = [template, *(each["spec"] for each in pods)]
    return [spec["containers"][0]["resources"].get("limits", {}).get(MILLI) for spec in specs]


def test_scale_edit_rollout_undo_and_removal(namespace: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    deployment = "deployment/deployment"
    namespace("apply", "-f", "-", stdin=manifest(0.1))
    assert shares(namespace) == ["100", "100"]
    namespace("scale", deployment, "--replicas=2")
    until(lambda: shares(namespace) == ["100"] * 3, 30, "scaled")
    monkeypatch.setenv("KUBE_EDITOR", f"sed -i 's#image: {IMAGE}#&\\n        env: [{{name: COLOUR, value: blue}}]#'")
    namespace("edit", deployment)
    assert rolled_out(namespace)["spec"]["template"]["spec"]["containers"][0]["env"][0]["value"] == "blue"
    until(lambda: shares(namespace) == ["100"] * 3, 30, "edited")
    namespace("scale", deployment, "--replicas=1")
    namespace("apply", "-f", "-", stdin=manifest(0.2))
    until(lambda: shares(namespace) == ["200"] * 2, 60, "changed")
    namespace("rollout", "undo", deployment)
    until(lambda: shares(namespace) == ["100"] * 2, 60, "undone")
    # The manifest is applied over what was undone, and then without the fraction.
    namespace("apply", "-f", "-", stdin=manifest(0.2))
    until(lambda: shares(namespace) == ["200"] * 2, 60, "changed again")
    namespace("rollout", "restart", deployment)
    until(lambda: shares(namespace) == ["200"] * 2, 60, "restarted")
    namespace("apply", "-f", "-", stdin=manifest(None))
    until(lambda: shares(namespace) == [None] * 2, 60, "taken back")
    until(lambda: not namespace.claims(), 30, "nothing is held any more")
    namespace("rollout", "undo", deployment)
    until(lambda: shares(namespace) == ["200"] * 2, 60, "undone to a share")
