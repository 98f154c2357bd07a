"""Pods that another webhook changes while the operator lifts their gate, and who pretends that one did."""

from __future__ import annotations

import base64
import contextlib
import ipaddress
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from support.apiserver import ApiServer, api_server
from support.certificates import certificate
from support.chart import CHART, NAMESPACE, Object, helm
from support.system import until

from remotegpu.api.kubernetes import GATE

MINE = "remotegpu-operator"
SESSION = "status.remotegpu.io/session"
# What the webhook changes: an image, a label, an annotation, a deadline, and where the pod may run.
CHANGES = [
    {"op": "replace", "path": "/spec/containers/0/image", "value": "by-digest"},
    {"op": "add", "path": "/metadata/labels/webhooks", "value": "label"},
    {"op": "add", "path": "/metadata/annotations/webhooks", "value": "annotation"},
    {"op": "add", "path": "/spec/activeDeadlineSeconds", "value": 3600},
    {"op": "add", "path": "/spec/tolerations/-", "value": {"key": "webhooks", "operator": "Exists"}},
    {"op": "add", "path": "/spec/nodeSelector", "value": {"kubernetes.io/os": "linux"}},
]
# As our webhook does. So no entry of managedFields has the gate.
GATES = [{"op": "add", "path": "/spec/schedulingGates", "value": [{"name": GATE}]}]


class Review(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        changes = CHANGES if review["request"]["operation"] == "UPDATE" else GATES
        patch = base64.b64encode(json.dumps(changes).encode()).decode()
        answer = {"uid": review["request"]["uid"], "allowed": True, "patchType": "JSONPatch", "patch": patch}
        body = json.dumps({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": answer}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def webhook(server: ApiServer, folder: Path) -> Iterator[None]:
    """Two webhooks: one gates new pods, the other one changes those of namespace `changed` when they are updated."""
    certificate(folder, "webhook", x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "webhook.pem", folder / "webhook.key")
    with ThreadingHTTPServer(("127.0.0.1", 0), Review) as listening:
        listening.socket = context.wrap_socket(listening.socket, server_side=True)
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        url = f"https://127.0.0.1:{listening.server_port}/"
        bundle = base64.b64encode((folder / "webhook.pem").read_bytes()).decode()
        hooks = [
            {
                "name": name,
                "clientConfig": {"url": url, "caBundle": bundle},
                "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": [operation]}],
                "namespaceSelector": {"matchExpressions": [
                    {"key": "kubernetes.io/metadata.name", "operator": "In", "values": namespaces},
                ]},
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
            }
            for name, operation, namespaces in (
                ("ours.example.com", "CREATE", ["changed", "calm"]),
                ("theirs.example.com", "UPDATE", ["changed"]),
            )
        ]  # fmt: skip
        kind = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration"}
        server.apply(kind | {"metadata": {"name": "theirs"}, "webhooks": hooks})
        try:
            yield
        finally:
            server.kubectl("delete", "mutatingwebhookconfiguration", "theirs")
            listening.shutdown()


Patch = Callable[..., str]


@pytest.fixture(scope="module", params=["oldest", "newest"])
def patch(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Patch]:
    """Patches a pod as somebody who has the operator's token. Returns what the API server says to it."""
    with api_server(*(["newest"] if request.param == "newest" else [])) as server:
        helm("install", "remotegpu", str(CHART), "--create-namespace", "--namespace", NAMESPACE, "--no-hooks",
             kubeconfig=server.kubeconfig)  # fmt: skip
        nobody = '-p=[{"op": "replace", "path": "/webhooks", "value": []}]'
        server.kubectl("patch", "mutatingwebhookconfiguration", "remotegpu", "--type=json", nobody)
        operator = server.kubeconfig_of(NAMESPACE, MINE)
        names = iter(range(1000))

        def send(namespace: str, body: Object, manager: str = MINE, before: Object | None = None) -> str:
            name = f"pod-{next(names)}"
            server.apply(gated(namespace, name))
            if before is not None:
                server.kubectl("patch", "pod", name, "-n", namespace, "--type=merge", f"-p={json.dumps(before)}")
            arguments = ("patch", "pod", name, "-n", namespace, "--type=merge", f"-p={json.dumps(body)}")
            as_operator = (f"--kubeconfig={operator}", f"--field-manager={manager}")
            return server.kubectl(*as_operator, *arguments, check=False).stderr

        for namespace in ("changed", "calm"):
            server.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        with webhook(server, tmp_path_factory.mktemp("webhook")):
            until(lambda: is_changed(server), 30, "the webhooks are called")
            label: Object = {"metadata": {"labels": {"a": "c"}}}
            until(lambda: "may not change labels" in send("calm", label), 30, "the policy is in force")
            yield send


def is_changed(server: ApiServer) -> bool:
    """Whether an update of a pod by an administrator is changed by the webhook."""
    server.apply(gated("changed", "probe"))
    body = json.dumps({"metadata": {"annotations": {"a": "b"}}})
    server.kubectl("patch", "pod", "probe", "-n", "changed", "--type=merge", f"-p={body}")
    found = json.loads(server.kubectl("get", "pod", "probe", "-n", "changed", "-o", "json").stdout)
    server.kubectl("delete", "pod", "probe", "-n", "changed", "--grace-period=0", "--force")
    return "webhooks" in found["metadata"]["labels"] and bool(found["spec"].get("schedulingGates"))


def gated(namespace: str, name: str) -> Object:
    labels = {"theirs": "1", "others": "1"}
    metadata = {"name": name, "namespace": namespace, "labels": labels, "annotations": {"theirs": "1"}}
    container = {"name": "main", "image": "first", "resources": {"limits": {"remotegpu/milli": "250"}}}
    spec = {"containers": [container], "tolerations": [{"key": "theirs", "operator": "Exists"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


LIFTS: Object = {"metadata": {"annotations": {SESSION: "{}"}}, "spec": {"schedulingGates": None}}


def with_more(**metadata: object) -> Object:
    """Returns a patch that lifts the gate, and changes more."""
    more = {**metadata, "annotations": {SESSION: "{}", **metadata.get("annotations", {})}}  # type: ignore[dict-item]
    return LIFTS | {"metadata": more}


def test_the_gate_is_lifted_though_another_webhook_changes_the_pod(patch: Patch) -> None:
    assert patch("changed", LIFTS) == ""
    assert patch("calm", LIFTS) == ""


# By one manager of its own, far in the future, the API server would put the oldest entries together.
FORGED = [
    {"manager": f"m{n}", "operation": "Update", "apiVersion": "v1", "time": "2099-01-01T00:00:00Z",
     "fieldsType": "FieldsV1", "fieldsV1": {"f:metadata": {"f:labels": {f"f:l{n}": {}}}}}
    for n in range(15)
]  # fmt: skip


@pytest.mark.parametrize("namespace", ["changed", "calm"])
@pytest.mark.parametrize(
    "body",
    [
        with_more(labels={"a": "b"}),
        with_more(labels={"theirs": "2"}),
        with_more(labels={"theirs": None}),
        with_more(annotations={"a": "b"}),
        with_more(annotations={"theirs": None}),
        with_more(finalizers=["a.example.com/b"]),
        LIFTS | {"spec": {"schedulingGates": None, "activeDeadlineSeconds": 1}},
        LIFTS | {"spec": {"schedulingGates": None, "nodeSelector": {"kubernetes.io/hostname": "mine"}}},
        # Without the entries that would show it, and with others in their place.
        with_more(labels={"a": "b"}, managedFields=[{}]),
        with_more(labels={"a": "b"}, managedFields=FORGED),
        LIFTS | {"metadata": {"managedFields": FORGED, "annotations": {SESSION: "{}"}},
                 "spec": {"schedulingGates": None, "activeDeadlineSeconds": 1}},
    ],
    ids=["label", "their label", "no label", "annotation", "no annotation", "finalizer", "deadline", "node",
         "no managers", "forged managers", "forged and deadline"],
)  # fmt: skip
def test_what_the_operator_itself_changes_is_refused(patch: Patch, body: Object, namespace: str) -> None:
    for manager in (MINE, "kubectl-patch"):
        assert "may not" in patch(namespace, body, manager) or "may change only" in patch(namespace, body, manager)


@pytest.mark.parametrize("body", [with_more(labels={"theirs": None}), with_more(annotations={"theirs": None})])
def test_what_nobody_owns_it_does_not_remove(patch: Patch, body: Object) -> None:
    """Takes away the managers before, as a webhook's label of a new pod has none: no entry would lose it."""
    refused = patch("changed", body, before={"metadata": {"managedFields": [{}]}})
    assert "may not change labels" in refused or "may change only annotations" in refused


def test_who_uses_the_operators_name_for_a_manager_gains_nothing(patch: Patch) -> None:
    """A tenant's pod with an entry by that manager: the operator's update counts as before."""
    entry = FORGED[0] | {"manager": MINE}
    assert "may not" in patch("changed", LIFTS, before={"metadata": {"managedFields": [entry]}})
