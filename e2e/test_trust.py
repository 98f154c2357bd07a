"""A stranger cannot use an appliance: the network policy and the appliance's own check each suffice alone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from support.checker import SYSTEM, Checker
from support.installation import Installation
from support.kubectl import ROOT, Kubectl, Object
from support.manifests import listening, pod, program
from support.namespace import Namespace
from support.system import until

from remotegpu.api.addresses import joined
from remotegpu.api.kubernetes import AUDIENCE, COMPONENT_LABEL, CONTROL_PORT, DATA_PORT, POD_DIRECTORY

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

EXAMPLE = ROOT / "examples" / "08-trust"
# This image has Python and the control service's stubs.
STUBS_IMAGE = "localhost/remotegpu-appliance:dev"


def address(appliance: Object) -> str:
    return str(appliance["status"]["podIP"])


def stranger(name: str, host: str, port: int = CONTROL_PORT) -> Object:
    """Returns the example's pod with this host and port as its target."""
    made: Object = yaml.safe_load((EXAMPLE / "stranger.yaml").read_text())
    made["metadata"]["name"] = name
    made["spec"]["containers"][0]["env"] = [{"name": "ENDPOINT", "value": joined(host, port)}]
    return made


def hostile(name: str, *arguments: str, fraction: str = "0.1") -> Object:
    """A pod with a share whose program speaks to the appliance itself."""
    made = pod(name, ["python", "-u", "/programs/hostile.py", *arguments], fraction=fraction)
    made["spec"]["containers"][0]["image"] = STUBS_IMAGE
    return made


def answer(line: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(line)
    return value


@pytest.fixture
def appliance(installation: Installation) -> Object:
    return installation.appliances()[0]


@pytest.fixture
def without_policy(kubectl: Kubectl, installation: Installation) -> Iterator[None]:
    """Lets every pod reach the appliances during the test: what policies allow adds up."""
    everybody = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "e2e-everybody"},
        "spec": {
            "podSelector": {"matchLabels": {COMPONENT_LABEL: "appliance"}},
            "policyTypes": ["Ingress"],
            "ingress": [{}],
        },
    }
    kubectl.apply(everybody, namespace=SYSTEM)
    yield
    kubectl("delete", "networkpolicy", "e2e-everybody", "-n", SYSTEM)


@pytest.mark.parametrize("port", [CONTROL_PORT, DATA_PORT])
def test_a_pod_without_a_share_is_kept_out_by_policy(namespace: Namespace, appliance: Object, port: int) -> None:
    assert "not connected" in namespace.run(stranger("stranger", address(appliance), port))


def test_and_without_policy_by_the_appliance(
    namespace: Namespace, appliance: Object, without_policy: None, kubectl: Kubectl
) -> None:
    def connects() -> bool:
        """The policy engine needs a moment."""
        said = namespace.run(stranger("dials", address(appliance)))
        namespace.delete("pod", "dials", now=True)
        return "not connected" not in said

    until(connects, 60, "without policy the stranger connects")

    holder = pod("holder", program("hold.py"), fraction="0.1")
    namespace.create(holder)
    claim = namespace.wait_for_claim("holder", "Allocated")
    # It knows everything that is not secret, and has its own token for the right audience.
    place = next(iter(claim["status"]["endpoints"]))
    session = {
        "claim": {"namespace": namespace.name, "name": claim["metadata"]["name"], "uid": claim["metadata"]["uid"]},
        "ca": Checker(kubectl).authority(),
        "appliances": [{"endpoint": place["endpoint"], "server_name": place["serverName"]}],
    }
    namespace("create", "configmap", "known", f"--from-literal=session={json.dumps(session)}")
    sources = [
        {"serviceAccountToken": {"audience": AUDIENCE, "path": "token"}},
        {"configMap": {"name": "known", "items": [{"key": "session", "path": "session"}]}},
    ]
    made = hostile("stranger", "honest")
    container = made["spec"]["containers"][0]
    container["resources"] = {}
    container["volumeMounts"].append({"name": "known", "mountPath": POD_DIRECTORY})
    made["spec"]["volumes"].append({"name": "known", "projected": {"sources": sources}})
    refused = answer(namespace.run(made))
    assert refused["code"] in {"UNAUTHENTICATED", "PERMISSION_DENIED"}
    assert refused["seconds"] < 1


# Tries again for some seconds: a node learns of a new pod's labels a little after the pod has started.
MONITOR = """
import sys, time, urllib.request
patience = time.monotonic() + float(sys.argv[1])
for where in sys.argv[2:]:
    while True:
        try:
            print("read", len(urllib.request.urlopen(f"http://{where}/metrics", timeout=3).read().splitlines()) > 5)
            break
        except OSError as error:
            if time.monotonic() > patience:
                print("not read", error)
                break
            time.sleep(0.2)
"""
DIAL = """
import os, socket, sys
for host, port in ((sys.argv[1], 9000), (os.environ["KUBERNETES_SERVICE_HOST"], 443)):
    try:
        socket.create_connection((host, port), 3)
        print("connected")
    except OSError:
        print("not connected")
"""


def test_metrics_are_for_the_namespaces_that_are_named(
    namespace: Namespace, kubectl: Kubectl, installation: Installation
) -> None:
    """Reads them from another namespace, under the policies: of an appliance, operator, webhook and device plugin."""

    def read(name: str, patience: int) -> list[str]:
        parts = [address(installation.pods(part)[0]) for part in ("operator", "webhook", "deviceplugin")]
        places = [joined(address(installation.appliances()[0]), 7072), *(joined(host, 8080) for host in parts)]
        said = namespace.run(pod(name, ["python3", "-c", MONITOR, str(patience), *places])).splitlines()
        namespace.delete("pod", name, now=True)
        return said

    assert [line[:8] for line in read("stranger", 5)] == ["not read"] * 4
    label = "example.com/monitors"
    kubectl("label", "namespace", namespace.name, f"{label}=yes")
    installation.upgrade("--set-json", f"metrics.fromNamespaces={json.dumps({label: 'yes'})}")
    try:
        installation.wait_until_ready()
        assert read("monitor", 30) == ["read True"] * 4
    finally:
        installation.upgrade()


def listens(namespace: Namespace) -> str:
    """Starts a pod that takes connections at port 9000; returns its address."""
    namespace.create(pod("listens", listening(9000)))
    namespace.wait_for_line("listens", "listens")
    found = namespace.get("pod", "listens")
    assert found
    return address(found)


def test_an_appliance_reaches_the_api_server_and_nobody_else(namespace: Namespace, kubectl: Kubectl) -> None:
    listener = listens(namespace)
    appliance = Checker(kubectl).appliance_pods()[0]["metadata"]["name"]
    said = kubectl("exec", "-n", SYSTEM, appliance, "--", "python", "-c", DIAL, listener)
    assert said.split("\n")[:2] == ["not connected", "connected"]


def audit_lines(kubectl: Kubectl, installation: Installation) -> list[str]:
    logs = (kubectl("logs", "-n", SYSTEM, each["metadata"]["name"], "--since=2m") for each in installation.appliances())
    return [line for log in logs for line in log.splitlines() if "audit: refused" in line]


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        ("lease", "OpenLease"),
        ("operator", "Inventory"),
        ("forged", "Hello"),
        ("other", "Hello"),
        ("session", "OpenSession"),
    ],
)
def test_a_pod_with_a_share_gets_nothing_else(
    kind: str, method: str, namespace: Namespace, kubectl: Kubectl, installation: Installation
) -> None:
    """A lease of its own choice, the operator's view, a forged token, another pod's share and its session."""
    namespace.create(pod("neighbour", program("hold.py"), fraction="0.1"))
    other = namespace.wait_for_claim("neighbour", "Allocated")["metadata"]["uid"]
    before = set(audit_lines(kubectl, installation))

    arguments = [other] if kind in {"other", "session"} else []
    refused = answer(namespace.run(hostile("hostile", kind, *arguments)))
    assert refused["code"] != "OK" or refused["refusal"]
    assert refused["devices"] == []
    assert refused["seconds"] < 1

    def written() -> bool:
        return any(f"refused {method} from" in line for line in set(audit_lines(kubectl, installation)) - before)

    until(written, 10, "an appliance's log says who was refused")


def test_the_share_of_a_hostile_pod_is_the_claims(namespace: Namespace) -> None:
    """The pod sees what CUDA shows to an honest pod of the same fraction, whatever it says."""
    shown = answer(namespace.run(hostile("hostile", "honest")))
    honest = json.loads(namespace.run(pod("honest", program("limit.py"), fraction="0.1")).splitlines()[-1])
    assert shown["devices"] == [honest["total"]]


def test_a_token_is_worth_nothing_after_its_claim(namespace: Namespace, checker: Checker) -> None:
    namespace.create(pod("holds", program("hold.py"), fraction="0.1"), hostile("replays", "replay"))
    namespace.wait_for_line("replays", '"OK"')
    namespace.wait_for_line("holds", "round 1")
    for name in ("replays", "holds"):
        claim = namespace.claim_of(name)
        assert claim
        namespace("delete", "gpuclaim", claim["metadata"]["name"])

    def refused() -> bool:
        last = answer(namespace.logs("replays").splitlines()[-1])
        return bool(last["code"] != "OK" and last["seconds"] < 1)

    until(refused, 10, "the token is refused although the pod lives")
    namespace.wait_for_phase("holds", "Failed", seconds=12)
    assert re.search("CUDA error", namespace.logs("holds"))
    checker.settled(20)


def test_a_namespace_that_denies_by_default(namespace: Namespace) -> None:
    listener = listens(namespace)
    assert "not connected" not in namespace.run(stranger("before", listener, 9000))

    namespace("apply", "-f", str(EXAMPLE / "default-deny.yaml"))

    def denied() -> bool:
        said = namespace.run(stranger("after", listener, 9000))
        namespace.delete("pod", "after", now=True)
        return "not connected" in said

    until(denied, 60, "the policy is in force")
    assert "ok" in namespace.run(pod("share", program("vector_add.py"), fraction="0.1"))
