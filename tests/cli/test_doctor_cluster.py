"""`remotegpu doctor --cluster` against a real API server with the chart's objects and the webhook: all is well, and
then each thing that breaks is one check that fails, with the command that mends it."""

from __future__ import annotations

import contextlib
import datetime
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.apiserver import ApiServer, api_server
from support.chart import CHART, NAMESPACE, helm
from support.system import REMOTEGPU
from support.webhook import Admission, issue, replica

Object = dict[str, Any]
NOW = datetime.datetime.now(datetime.UTC)


def stamp(age_seconds: float = 0) -> str:
    return (datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=age_seconds)).isoformat(
        timespec="microseconds"
    )


def condition(kind: str, status: str = "True", message: str = "") -> Object:
    return {"type": kind, "status": status, "reason": "Test", "message": message, "lastTransitionTime": NOW.isoformat()}


def appliance(phase: str = "Ready", *, healthy: bool = True) -> Object:
    gpu = {
        "uuid": "GPU-1",
        "model": "Test",
        "memory": 1 << 30,
        "shareable": 1 << 30,
        "healthy": healthy,
        "message": "XID 79",
    }
    return {"name": "default-a", "node": "a", "phase": phase, "message": "", "reason": "", "gpus": [gpu]}


class Lab:
    """The objects of a cluster in which all is well, and what it takes to break one."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server

    def status(self, kind: str, name: str, status: Object, namespace: str = NAMESPACE) -> None:
        body = json.dumps({"status": status})
        self.server.kubectl(
            "patch", kind, name, f"--namespace={namespace}", "--subresource=status", "--type=merge", f"-p={body}"
        )

    def pool(self, *appliances: Object, **conditions: str) -> None:
        told = [condition(kind, "False" if message else "True", message) for kind, message in conditions.items()]
        self.status(
            "gpupool", "default", {"phase": "Ready", "gpus": 1, "appliances": list(appliances), "conditions": told}
        )

    def lease(self, age_seconds: float) -> None:
        spec = {"holderIdentity": "operator-0", "leaseDurationSeconds": 15, "renewTime": stamp(age_seconds)}
        metadata = {"name": "remotegpu-operator", "namespace": NAMESPACE}
        self.server.apply({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec})

    def node(self, milli: str) -> None:
        self.status("node", "a", {"conditions": [condition("Ready")], "allocatable": {"remotegpu/milli": milli}})

    def make_well(self) -> None:
        self.status("deployment", "remotegpu-operator", {"replicas": 2, "readyReplicas": 2})
        self.status("deployment", "remotegpu-webhook", {"replicas": 2, "readyReplicas": 2})
        self.pool(appliance(), Ready="", CertificatesRenewed="")
        self.lease(0)
        self.node("2000")

    def doctor(self, *more: str, kubeconfig: Path | None = None) -> tuple[int, dict[str, Object]]:
        command = [REMOTEGPU, "doctor", "--kubeconfig", str(kubeconfig or self.server.kubeconfig), "--json", *more]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.stdout, done.stderr
        checks = json.loads(done.stdout)["checks"]
        return done.returncode, {each["name"]: each for each in checks if each["where"] == "cluster"}

    def bad(self) -> dict[str, Object]:
        return {name: each for name, each in self.doctor()[1].items() if each["status"] != "ok"}


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    with api_server() as it:
        yield it


@pytest.fixture(scope="module")
def built(server: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """The chart, with the webhook in a process of its own in the place of its Service."""
    helm("install", "remotegpu", str(CHART), f"--namespace={NAMESPACE}", "--create-namespace", "--no-hooks",
         kubeconfig=server.kubeconfig)  # fmt: skip
    server.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
    server.kubectl("delete", "mutatingwebhookconfiguration", "remotegpu")
    certificates = tmp_path_factory.mktemp("tls")
    authority = issue(certificates)
    server.apply(
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}},
        {"apiVersion": "remotegpu.io/v1alpha1", "kind": "GPUPool", "metadata": {"name": "default"},
         "spec": {"backend": "software"}},
    )  # fmt: skip
    with replica(certificates) as it:
        Admission(server, it, authority).call(it.url)
        yield Lab(server)


@pytest.fixture
def lab(built: Lab) -> Lab:
    built.make_well()
    return built


def test_a_cluster_in_which_all_is_well(lab: Lab) -> None:
    code, checks = lab.doctor()
    assert (code, {name: each for name, each in checks.items() if each["status"] != "ok"}) == (0, {})
    names = {"API server", "operator", "webhook", "operator leads", "webhook is called", "webhook's authority"}
    names |= {"admission policies", "device plugins", "pool default", "quotas", "claims"}
    assert names <= checks.keys()


def test_what_it_asks_leaves_nothing_behind(lab: Lab) -> None:
    lab.doctor()
    assert lab.server.kubectl("get", "pods,gpuclaims", "-A", "-o", "name").stdout == ""


def test_an_operator_that_does_not_run(lab: Lab) -> None:
    lab.status("deployment", "remotegpu-operator", {"replicas": 2, "readyReplicas": 0})
    lab.lease(300)
    bad = lab.bad()
    assert set(bad) == {"operator", "operator leads"}
    assert bad["operator"]["fix"].startswith(f"kubectl -n {NAMESPACE} describe pods")
    assert "operator-0 is not renewed" in bad["operator leads"]["message"]
    assert lab.doctor()[0] == 69


def test_a_node_without_the_device_plugin(lab: Lab) -> None:
    lab.node("0")
    (only,) = lab.bad().values()
    assert (only["name"], only["status"]) == ("device plugin on a", "warn")
    assert only["fix"].endswith("spec.nodeName=a")


@pytest.mark.parametrize(
    ("appliances", "conditions", "said"),
    [
        ([appliance("Lost")], {}, "default-a is Lost"),
        ([appliance(healthy=False)], {}, "GPU-1 of default-a: XID 79"),
        ([appliance()], {"CertificatesRenewed": "the Secret is gone"}, "the Secret is gone"),
        ([], {}, "it has no appliance that is ready"),
    ],
)
def test_a_pool_that_is_not_well(lab: Lab, appliances: list[Object], conditions: dict[str, str], said: str) -> None:
    lab.pool(*appliances, **conditions)
    (only,) = lab.bad().values()
    assert said in only["message"]
    assert only["fix"] == "kubectl describe gpupool default"


def test_a_full_quota(lab: Lab) -> None:
    metadata = {"name": "gpus", "namespace": "default"}
    spec = {"hard": {"requests.remotegpu/milli": "1k"}}
    lab.server.apply({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": spec})
    try:
        for used, names in (("999", set()), ("1000", {"quota default/gpus"})):
            lab.status("resourcequota", "gpus", {"used": {"requests.remotegpu/milli": used}}, "default")
            assert set(lab.bad()) == names
    finally:
        lab.server.kubectl("delete", "resourcequota", "gpus")


def test_a_policy_that_is_not_bound(lab: Lab) -> None:
    with without(lab, "validatingadmissionpolicybinding", "remotegpu-claims"):
        (only,) = lab.bad().values()
        assert "not in force: remotegpu-claims;" in only["message"]
        assert only["fix"].startswith("helm upgrade --install")


def test_a_webhook_that_nobody_calls(lab: Lab) -> None:
    with without(lab, "mutatingwebhookconfiguration", "remotegpu"):
        assert "there is no MutatingWebhookConfiguration" in lab.bad()["webhook is called"]["message"]


def test_a_certificate_that_ends(lab: Lab, tmp_path: Path) -> None:
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-subj",
        "/CN=x",
        "-days",
        "3",
    ]
    key, certificate = tmp_path / "tls.key", tmp_path / "tls.crt"
    subprocess.run([*command, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    lab.server.kubectl(
        "create", "secret", "tls", "soon", f"--namespace={NAMESPACE}", f"--cert={certificate}", f"--key={key}"
    )
    lab.server.kubectl(
        "label", "secret", "soon", f"--namespace={NAMESPACE}", "app.kubernetes.io/managed-by=remotegpu-operator"
    )
    try:
        (only,) = lab.bad().values()
        assert (only["name"], only["status"]) == ("certificate soon", "fail")
        assert "it ends in 2 days" in only["message"]
    finally:
        lab.server.kubectl("delete", "secret", "soon", f"--namespace={NAMESPACE}")


def test_somebody_without_rights_is_told_what_could_not_be_seen(lab: Lab) -> None:
    code, checks = lab.doctor(kubeconfig=lab.server.kubeconfig_of("default", "nobody"))
    assert code == 0
    assert checks["pools"]["status"] == checks["certificates"]["status"] == "warn"
    assert "cannot list resource" in checks["pools"]["message"]
    assert "kubectl auth can-i" in checks["pools"]["fix"]


def test_no_cluster_at_all(lab: Lab, tmp_path: Path) -> None:
    gone = tmp_path / "gone.kubeconfig"
    gone.write_text(Path(lab.server.kubeconfig).read_text().replace(lab.server.url, "https://127.0.0.1:1"))
    code, checks = lab.doctor(kubeconfig=gone)
    assert (code, set(checks)) == (69, {"API server"})
    command = [REMOTEGPU, "doctor", "--kubeconfig", str(tmp_path / "none")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "--kubeconfig FILE" in done.stderr, done.stderr.count("\n")) == (69, True, 1)


@contextlib.contextmanager
def without(lab: Lab, kind: str, name: str) -> Iterator[None]:
    kept = json.loads(lab.server.kubectl("get", kind, name, "-o", "json").stdout)
    for field in ("resourceVersion", "uid", "creationTimestamp", "managedFields", "generation"):
        kept["metadata"].pop(field, None)
    lab.server.kubectl("delete", kind, name)
    try:
        yield
    finally:
        lab.server.kubectl("create", "-f", "-", stdin=json.dumps(kept))
