"""The chart's objects on a real API server, and the programs of its hooks with the rights that the chart gives them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.aio import client as kubernetes_client
from kubernetes.aio import config as kubernetes_config
from support.apiserver import ApiServer, api_server
from support.chart import CHART, NAMESPACE, Object, helm, named, pod_specs, render
from support.system import until

from remotegpu.api.kubernetes import API_VERSION, GATE, MILLI, POD_LABEL
from remotegpu.api.pools import GPUPool
from remotegpu_operator.builders.appliances import ApiAddress, Installation, plans, stateful_set, tls_secret
from remotegpu_operator.builders.pools import disruption_budget, network_policy, service
from remotegpu_operator.cluster.kube import Api, ApiError
from remotegpu_operator.lifecycle import install, nodekeys, uninstall

EVERY_VALUE = Path(__file__).parent / "every-value.yaml"
# The API of the Prometheus operator is not there, and the CRDs are to outlive the release.
SERVED = ("--set", "metrics.serviceMonitor.enabled=false,metrics.prometheusRule.enabled=false,crds.keep=true")


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    """A server of this file's own: the chart's admission applies to the whole server."""
    with api_server() as it:
        yield it


@pytest.fixture
def installed(server: ApiServer) -> Iterator[ApiServer]:
    with installed_in(server):
        yield server


@contextlib.contextmanager
def installed_in(server: ApiServer) -> Iterator[None]:
    """The server has the chart, but makes no calls of its webhook, which does not run here."""
    chart(server, "install", "remotegpu", str(CHART), "--create-namespace")
    server.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
    nobody = '-p=[{"op": "replace", "path": "/webhooks", "value": []}]'
    server.kubectl("patch", "mutatingwebhookconfiguration", "remotegpu", "--type=json", nobody)
    yield
    server.kubectl("delete", "gpupools,gpuclaims", "--all", "--all-namespaces", check=False)
    chart(server, "uninstall", "remotegpu", "--ignore-not-found")


def chart(server: ApiServer, *arguments: str) -> str:
    """Renders without hooks: nothing here could run a pod."""
    return helm(*arguments, "--namespace", NAMESPACE, "--no-hooks", kubeconfig=server.kubeconfig).stdout


def of_release(server: ApiServer) -> set[str]:
    kinds = "deploy,ds,svc,sa,netpol,pdb,role,rolebinding,clusterrole,clusterrolebinding,mutatingwebhookconfigurations"
    kinds += ",validatingadmissionpolicies,validatingadmissionpolicybindings"
    listing = server.kubectl("get", kinds, "-A", "-l", "app.kubernetes.io/name=remotegpu", "-o", "name")
    return set(listing.stdout.split())


def test_install_upgrade_rollback_uninstall(server: ApiServer) -> None:
    life_of_a_release(server)


def test_install_upgrade_rollback_uninstall_on_the_newest() -> None:
    with api_server("newest") as newest:
        life_of_a_release(newest)


def life_of_a_release(server: ApiServer) -> None:
    notes = chart(server, "install", "remotegpu", str(CHART), "--create-namespace").partition("NOTES:")[2]
    for step in ("kubectl get gpupools", "remotegpu/fraction: 0.25", f"helm test remotegpu -n {NAMESPACE}"):
        assert step in notes
    installed = of_release(server)
    assert {"deployment.apps/remotegpu-operator", "daemonset.apps/remotegpu-deviceplugin"} <= installed
    # The values that the operator writes must survive an upgrade, or no pod could be created until it writes them
    # again.
    bundle = '-p=[{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": "Q0E="}]'
    server.kubectl("patch", "mutatingwebhookconfiguration", "remotegpu", "--type=json", bundle)

    chart(server, "upgrade", "remotegpu", str(CHART), "--values", str(EVERY_VALUE), *SERVED)
    assert get(server, "deployment", "remotegpu-operator", NAMESPACE)["spec"]["replicas"] == 3
    webhooks = get(server, "mutatingwebhookconfiguration", "remotegpu")["webhooks"]
    assert webhooks[0]["clientConfig"]["caBundle"] == "Q0E="
    # These values leave much out, and add the dashboard alone.
    assert of_release(server) - {"service/remotegpu-dashboard"} < installed

    chart(server, "rollback", "remotegpu", "1")
    assert of_release(server) == installed
    chart(server, "uninstall", "remotegpu")
    assert of_release(server) == set()
    assert "gpuclaims.remotegpu.io" in server.kubectl("get", "crd").stdout


def test_every_object_is_accepted_and_every_pod_but_one_complies_with_restricted(
    server: ApiServer, tmp_path: Path
) -> None:
    restricted = {"pod-security.kubernetes.io/enforce": "restricted"}
    for name, labels in ((NAMESPACE, {}), ("restricted", restricted)):
        server.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    # The API of the Prometheus operator is not served here; its objects are not rendered by default.
    objects = render({}, tmp_path)
    asking = named(objects, "Pod", "remotegpu-test")
    # Rewritten by the webhook, which does not run here.
    asking["spec"]["containers"][0]["resources"] = {"limits": {MILLI: 100}}
    everything = {"apiVersion": "v1", "kind": "List", "items": objects}
    dry = ("--dry-run=server", "--validate=strict", "--server-side", "--force-conflicts")
    server.kubectl("apply", *dry, "-f", "-", stdin=json.dumps(everything))

    refused: dict[str, str] = {}
    for name, spec in pod_specs(objects).items():
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "restricted"}, "spec": spec}
        # A Deployment's template leaves it to its default.
        pod["spec"] = {"restartPolicy": "Always", **spec}
        answer = server.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(pod), check=False)
        if answer.returncode:
            refused[name] = answer.stderr
    assert list(refused) == ["DaemonSet remotegpu-deviceplugin"]
    sentence = refused["DaemonSet remotegpu-deviceplugin"].partition('latest": ')[2]
    assert sentence.strip().split("), ") == [
        'restricted volume types (volumes "plugins", "client", "local" use restricted volume type "hostPath"',
        'runAsNonRoot != true (pod or container "deviceplugin" must set securityContext.runAsNonRoot=true',
        "runAsUser=0 (pod must not set runAsUser=0)",
    ]


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"backend": "cuda", "gpusPerNode": 2, "localSockets": False},
        {
            "offload": [{"name": "e", "python": "/usr/bin/python3"}],
            "resources": {"limits": {"memory": "4Gi"}},
            "tolerations": [{"operator": "Exists"}],
            "runtimeClassName": "nvidia",
            "priorityClassName": "system-node-critical",
            "temporaryStorage": "1Gi",
            "software": {"gpus": 4},
        },
    ],
    ids=["plain", "cuda", "all"],
)
def test_what_the_operator_makes_complies_with_restricted(server: ApiServer, spec: Object) -> None:
    """Every object that it makes of a pool is accepted, and its pod in a namespace that enforces the level."""
    restricted = {"pod-security.kubernetes.io/enforce": "restricted"}
    for name, labels in ((NAMESPACE, {}), ("restricted", restricted)):
        server.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    if "runtimeClassName" in spec:
        named_class = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}}
        server.apply({**named_class, "handler": "nvidia"})
    pool = GPUPool.from_object({"metadata": {"name": "default", "uid": "0000-1"}, "spec": spec})
    allocatable = {"memory": "16Gi", "nvidia.com/gpu": "2"}
    node = {"metadata": {"name": "node-a"}, "spec": {"taints": []}, "status": {"allocatable": allocatable}}
    installation = Installation(NAMESPACE, "image", "IfNotPresent", api_servers=(ApiAddress("10.0.0.1", 443),))
    (plan,) = plans(pool, [node])
    made = [stateful_set(plan, installation), tls_secret(plan, NAMESPACE, "certificate", "key")]
    made += [build(pool, installation) for build in (service, network_policy, disruption_budget)]
    dry = ("--dry-run=server", "--validate=strict", "--server-side", "-f", "-")
    server.kubectl("apply", *dry, stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": made}))
    template = made[0]["spec"]["template"]
    pod: Object = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "restricted"}}
    answer = server.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(pod | {"spec": template["spec"]}))
    assert "Warning" not in answer.stderr
    # The enforced level refuses what appliances had before.
    host = {"name": "local", "hostPath": {"path": "/var/lib/remotegpu/local", "type": "DirectoryOrCreate"}}
    before = {**template["spec"], "volumes": [*template["spec"]["volumes"], host]}
    refused = server.kubectl(
        "create", "--dry-run=server", "-f", "-", stdin=json.dumps(pod | {"spec": before}), check=False
    )
    assert "hostPath" in refused.stderr


def test_the_folder_for_sockets_is_for_appliances(installed: ApiServer) -> None:
    """The device plugin mounts a writable folder for this resource."""
    container = {"name": "c", "image": "i", "resources": {"limits": {"remotegpu.io/local-sockets": "1"}}}

    def create(namespace: str, kind: str) -> subprocess.CompletedProcess[str]:
        spec = {"containers": [{"name": "main", "image": "i"}], kind: [container]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": namespace}, "spec": spec}
        return installed.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(pod), check=False)

    # A policy is in force some moments after it was written.
    until(lambda: create("default", "containers").returncode, 30, "the policy refuses what only appliances may have")
    for namespace, allowed in (("default", False), (NAMESPACE, True)):
        for kind in ("containers", "initContainers"):
            answer = create(namespace, kind)
            assert (answer.returncode == 0) is allowed, answer.stderr
            assert allowed or "remotegpu.io/local-sockets is for RemoteGPU's appliances" in answer.stderr


# An affinity that Kubernetes lets clients add to a gated pod.
ON_MINE: Object = {
    "requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["mine"]}]}]
    }
}


def test_the_operators_right_to_patch_pods_ends_at_gate_and_session(installed: ApiServer) -> None:
    the_operators_right_ends(installed)


def test_the_operators_right_ends_there_on_the_newest() -> None:
    with api_server("newest") as newest, installed_in(newest):
        the_operators_right_ends(newest)


def the_operators_right_ends(server: ApiServer) -> None:
    runs = {"nodeName": "mine", "initContainers": [{"name": "i", "image": "i"}]}
    server.apply(gated_pod("waits", "default"), pod("runs", "default", **runs))
    operator = server.kubeconfig_of(NAMESPACE, "remotegpu-operator")

    def patch(body: Object | list[Object], kind: str = "merge", dry_run: str = "none", name: str = "waits") -> str:
        arguments = ("patch", "pod", name, "-n", "default", f"--type={kind}", f"-p={json.dumps(body)}")
        return server.kubectl(f"--kubeconfig={operator}", *arguments, f"--dry-run={dry_run}", check=False).stderr

    # A policy is in force some moments after it was written.
    labels: Object = {"metadata": {"labels": {"app": "yours"}}}
    until(lambda: patch(labels, dry_run="server"), 30, "the policy refuses what the operator may not change")
    for body, sentence in (
        (labels, "may not change labels, finalizers or owners of pods"),
        ({"metadata": {"finalizers": ["a.example.com/b"]}}, "may not change labels, finalizers or owners of pods"),
        ({"metadata": {"annotations": {"a": "b"}}}, "annotations of pods that begin with status.remotegpu.io/"),
        ({"metadata": {"annotations": {"theirs": None}}}, "annotations of pods that begin with status.remotegpu.io/"),
        ({"spec": {"schedulingGates": [{"name": GATE}]}}, "may lift only its own gate of pods, remotegpu.io/claim"),
        ({"spec": {"schedulingGates": None}}, "may lift only its own gate of pods, remotegpu.io/claim"),
        ({"spec": {"activeDeadlineSeconds": 1}}, "may not change how long pods live, or where they run"),
        ({"spec": {"nodeSelector": {"kubernetes.io/hostname": "mine"}}}, "how long pods live, or where they run"),
        ({"spec": {"affinity": {"nodeAffinity": ON_MINE}}}, "may not change how long pods live, or where they run"),
    ):
        assert sentence in patch(body), body
    image = [{"op": "replace", "path": "/spec/containers/0/image", "value": "another"}]
    assert "may not change images of pods" in patch(image, "json")
    toleration = [{"op": "add", "path": "/spec/tolerations/-", "value": {"operator": "Exists"}}]
    assert "may lift only its own gate" in patch(toleration, "json")
    for path, value, sentence in (
        ("activeDeadlineSeconds", 1, "how long pods live"),
        # The API server itself lets nobody change it, but to 1 where it is negative, which 1 means there.
        ("terminationGracePeriodSeconds", 5, "pod updates may not change fields"),
        ("tolerations/-", {"operator": "Exists"}, "may lift only its own gate"),
        ("containers/0/image", "another", "may not change images of pods"),
        ("initContainers/0/image", "another", "may not change images of pods"),
    ):
        change = [{"op": "add", "path": f"/spec/{path}", "value": value}]
        assert sentence in patch(change, "json", name="runs"), path
    for part in ("resize", "ephemeralcontainers"):
        arguments = ("patch", "pod", "runs", "-n", "default", f"--subresource={part}", "-p", '{"spec": {}}')
        assert "Forbidden" in server.kubectl(f"--kubeconfig={operator}", *arguments, check=False).stderr, part
    session = {"metadata": {"annotations": {"status.remotegpu.io/session": "{}"}}}
    assert patch(session | {"spec": {"schedulingGates": [{"name": "theirs.example.com/gate"}]}}) == ""
    assert get(server, "pod", "waits", "default")["spec"]["schedulingGates"] == [{"name": "theirs.example.com/gate"}]


def claim_with(name: str = "urgent", **spec: object) -> str:
    metadata = {"name": name, "namespace": "default"}
    spec = {"fraction": "0.5", **spec}
    return json.dumps({"apiVersion": API_VERSION, "kind": "GPUClaim", "metadata": metadata, "spec": spec})


class Users:
    """Users of `default`: `tenant` may write claims, `trusted` may prioritise them, `golden` may use e2e-gold."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        of_claims = {"apiGroups": ["remotegpu.io"], "resources": ["gpuclaims"]}
        gold = {"apiGroups": ["scheduling.k8s.io"], "resources": ["priorityclasses"], "resourceNames": ["e2e-gold"]}
        roles = (
            ("Role", "edit", of_claims | {"verbs": ["create", "get", "patch"]}),
            ("Role", "first", of_claims | {"verbs": ["prioritize"]}),
            ("ClusterRole", "gold", gold | {"verbs": ["use"]}),
        )
        for kind, role, rule in roles:
            metadata = {"name": role} if kind == "ClusterRole" else {"name": role, "namespace": "default"}
            api_version = "rbac.authorization.k8s.io/v1"
            server.apply({"apiVersion": api_version, "kind": kind, "metadata": metadata, "rules": [rule]})
        users = ("tenant", "trusted", "golden")
        self.configs = {user: server.kubeconfig_of("default", user) for user in users}
        self.configs["operator"] = server.kubeconfig_of(NAMESPACE, "remotegpu-operator")
        for role, user in (*(("edit", user) for user in users), ("first", "trusted")):
            binding = ("create", "rolebinding", f"{role}-{user}", "-n", "default", f"--role={role}")
            server.kubectl(*binding, f"--serviceaccount=default:{user}")
        server.kubectl("create", "clusterrolebinding", "gold", "--clusterrole=gold", "--serviceaccount=default:golden")

    def create(self, user: str, name: str = "urgent", **spec: object) -> subprocess.CompletedProcess[str]:
        arguments = (f"--kubeconfig={self.configs[user]}", "create", "-f", "-")
        return self.server.kubectl(*arguments, stdin=claim_with(name, **spec), check=False)

    def patch(self, user: str, name: str, **spec: object) -> int:
        arguments = ("patch", "gpuclaim", name, "-n", "default", "--type=merge", f"-p={json.dumps({'spec': spec})}")
        return self.server.kubectl(f"--kubeconfig={self.configs[user]}", *arguments, check=False).returncode

    def eventually(self, user: str, code: int, warned: bool, **spec: Any) -> None:
        """Retries: a policy is in force some moments after it was written."""

        def seen() -> bool:
            answer = self.create(user, **spec)
            self.server.kubectl("delete", "gpuclaim", "urgent", "-n", "default", "--ignore-not-found")
            return (answer.returncode, "permission" in answer.stderr) == (code, warned)

        until(seen, 30, f"{user} makes a claim with {spec}: exit code {code}")


def test_a_priority_needs_a_permission(installed: ApiServer) -> None:
    """Number and class: refused, or a warning where the chart's value says so."""
    users = Users(installed)
    chart(installed, "upgrade", "remotegpu", str(CHART), "--set", "claims.priorityWithoutPermission=Warn")
    users.eventually("tenant", 0, warned=True, priority=100)
    users.eventually("trusted", 0, warned=False, priority=100)
    users.eventually("tenant", 0, warned=True, priorityClassName="e2e-gold")
    users.eventually("golden", 0, warned=False, priorityClassName="e2e-gold")
    users.eventually("golden", 0, warned=True, priorityClassName="e2e-platinum")
    # Classes of the system overtake everybody.
    users.eventually("tenant", 1, warned=True, priorityClassName="system-node-critical")
    users.eventually("trusted", 0, warned=False, priorityClassName="system-node-critical")
    assert users.create("tenant", "old", priority=100).returncode == 0
    assert users.create("tenant", "classed", priorityClassName="e2e-gold").returncode == 0
    chart(installed, "upgrade", "remotegpu", str(CHART), "--reset-values")
    users.eventually("tenant", 1, warned=True, priority=100)
    users.eventually("trusted", 0, warned=False, priority=100)
    users.eventually("tenant", 0, warned=False, priority=-100)
    users.eventually("tenant", 1, warned=True, priorityClassName="e2e-gold")
    users.eventually("golden", 0, warned=False, priorityClassName="e2e-gold")
    users.eventually("golden", 1, warned=True, priorityClassName="e2e-platinum")
    users.eventually("trusted", 0, warned=False, priorityClassName="e2e-platinum")
    # A claim that was there before stays, and can be changed in other ways.
    assert users.patch("tenant", "old", startDeadline="1h") == 0
    assert users.patch("tenant", "old", priority=101) == 1
    assert users.patch("tenant", "classed", startDeadline="1h") == 0
    assert users.patch("tenant", "classed", priorityClassName="e2e-platinum") == 1
    # A claim that the operator makes for a pod has the number of the pod's PriorityClass.
    assert users.create("operator", "of-a-pod", priority=100).returncode == 0


def test_pools_of_the_values_come_change_and_go(installed: ApiServer, tmp_path: Path) -> None:
    server = installed
    account = hook_account(server, render({}, tmp_path), "install")
    server.apply({"apiVersion": API_VERSION, "kind": "GPUPool", "metadata": {"name": "by-hand"}, "spec": {}})

    def after(pools: Object) -> dict[str, Object]:
        made = named(render({"pools": pools}, tmp_path), "ConfigMap", "remotegpu-install")["data"]["pools.yaml"]
        asyncio.run(install.run(yaml.safe_load(made) or [], account))
        items = json.loads(server.kubectl("get", "gpupools", "-o", "json").stdout)["items"]
        return {pool["metadata"]["name"]: pool["spec"] for pool in items}

    first = after({"default": {"software": {"memory": "2Gi"}}})
    assert sorted(first) == ["by-hand", "default"]
    assert first["default"]["software"]["memory"] == "2Gi"
    second = after({"default": {"software": {"memory": "4Gi"}}, "more": {"backend": "cuda"}})
    assert sorted(second) == ["by-hand", "default", "more"]
    assert second["default"]["software"]["memory"] == "4Gi"
    assert sorted(after({"default": None, "more": {"backend": "cuda"}})) == ["by-hand", "more"]
    with pytest.raises(SystemExit, match=r"\bmore\b.*`pools`") as refused:
        after({"default": None, "more": {"backend": "software"}})
    cause = refused.value.__cause__
    assert isinstance(cause, ApiError) and cause.reason == "Invalid"


def test_uninstall_leaves_a_cluster_in_which_nothing_waits_for_us(installed: ApiServer, tmp_path: Path) -> None:
    server = installed
    pool = {"apiVersion": API_VERSION, "kind": "GPUPool", "spec": {}}
    by_chart = {"app.kubernetes.io/name": "remotegpu", "app.kubernetes.io/managed-by": "Helm"}
    made = {"app.kubernetes.io/managed-by": "remotegpu-operator"}
    claim = {"apiVersion": API_VERSION, "kind": "GPUClaim"}
    server.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}},
        gated_pod("waits", "team"),
        pool | {"metadata": {"name": "default", "labels": by_chart}},
        pool | {"metadata": {"name": "by-hand"}},
        claim | {"metadata": {"name": "kept", "namespace": "team"}, "spec": {"fraction": "0.5"}},
        claim
        | {
            "metadata": {"name": "waits-1", "namespace": "team"},
            "spec": {"fraction": "0.5", "pod": {"name": "waits", "uid": "1"}},
        },
        secret("remotegpu-ca", made),
        secret("theirs", {}),
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node"}},
    )
    status(
        server,
        "node",
        "node",
        {"capacity": {MILLI: "1k", "remotegpu/client": "1k", "cpu": "2"}, "allocatable": {MILLI: "1k", "cpu": "2"}},
    )
    status(server, "gpupool", "by-hand", {"phase": "Ready", "gpus": 1})
    status(server, "gpuclaim", "kept", {"phase": "Allocated", "reason": "Allocated"}, "team")

    objects = render({}, tmp_path)
    hook = named(objects, "ConfigMap", "remotegpu-uninstall")
    account = hook_account(server, objects, "uninstall", "nodekeys")
    later = yaml.safe_load(hook["data"]["nodekeys.yaml"])
    asyncio.run(uninstall.run(NAMESPACE, later, account))

    assert "remotegpu" not in names(server, "mutatingwebhookconfiguration")
    assert "remotegpu" not in names(server, "validatingadmissionpolicybinding")
    assert get(server, "deployment", "remotegpu-operator", NAMESPACE)["spec"]["replicas"] == 0
    assert names(server, "daemonset", NAMESPACE) == []
    secrets = names(server, "secret", NAMESPACE)
    assert "theirs" in secrets and "remotegpu-ca" not in secrets
    assert get(server, "node", "node")["status"]["capacity"] == {"cpu": "2"}
    assert get(server, "node", "node")["status"]["allocatable"] == {"cpu": "2"}
    assert names(server, "gpupool") == ["by-hand"]
    assert get(server, "gpupool", "by-hand")["status"]["phase"] == "Pending"
    assert names(server, "gpuclaim", "team") == ["kept"]
    assert get(server, "gpuclaim", "kept", "team")["status"]["reason"] == "NotSeen"
    pod = get(server, "pod", "waits", "team")
    assert pod["spec"]["schedulingGates"] == [{"name": "theirs.example.com/gate"}]
    event = json.loads(server.kubectl("get", "events", "-n", "team", "-o", "json").stdout)["items"][0]
    assert event["involvedObject"]["uid"] == pod["metadata"]["uid"]
    assert "remotegpu was uninstalled" in event["message"]
    # Run it again, as after an interrupted try, and with the definitions gone already.
    server.kubectl("delete", "crd", "gpupools.remotegpu.io", "gpuclaims.remotegpu.io")
    asyncio.run(uninstall.run(NAMESPACE, later, account))
    chart(server, "uninstall", "remotegpu")

    # Kubelet writes 0 when it forgets the plugin; the Job takes that off and then its own rights.
    job = get(server, "job", "remotegpu-nodekeys", NAMESPACE)
    of_job = get(server, "serviceaccount", "remotegpu-nodekeys", NAMESPACE)
    assert [owner["uid"] for owner in of_job["metadata"]["ownerReferences"]] == [job["metadata"]["uid"]]
    role = get(server, "clusterrole", "remotegpu-nodekeys")
    binding = get(server, "clusterrolebinding", "remotegpu-nodekeys")
    assert [owner["uid"] for owner in binding["metadata"]["ownerReferences"]] == [role["metadata"]["uid"]]
    status(server, "node", "node", {"capacity": {MILLI: "0"}, "allocatable": {MILLI: "0"}})
    asyncio.run(nodekeys.run(access(server.kubeconfig_of(NAMESPACE, "remotegpu-nodekeys")), quiet_seconds=0))
    assert get(server, "node", "node")["status"]["capacity"] == {"cpu": "2"}
    assert "remotegpu-nodekeys" not in names(server, "clusterrole")


def test_keys_that_kubelet_still_counts_are_left_until_it_has_forgotten_them(server: ApiServer) -> None:
    """Taking them off earlier would only make kubelet write them again, every ten seconds."""
    server.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "keys"}})
    admin = access(server.kubeconfig)

    async def after(capacity: str, allocatable: str) -> tuple[int, str | None]:
        async with Api(admin) as api:
            status(server, "node", "keys", {"capacity": {MILLI: capacity}, "allocatable": {MILLI: allocatable}})
            found = await nodekeys.remove_forgotten_keys(api)
        return found, get(server, "node", "keys")["status"].get("capacity", {}).get(MILLI)

    assert asyncio.run(after("1k", "0")) == (1, "1k")
    assert asyncio.run(after("0", "0")) == (1, None)
    # A plugin that was installed again meanwhile.
    assert asyncio.run(after("1k", "1k")) == (0, "1k")


def hook_account(server: ApiServer, objects: list[Object], account: str, *others: str) -> Any:
    """The hook's service account, with exactly the rights that the chart allows it."""
    for thing in objects:
        component = thing["metadata"]["labels"]["app.kubernetes.io/component"]
        if thing["kind"].endswith(("Account", "Role", "Binding")) and component in {account, *others}:
            server.apply(thing)
    return access(server.kubeconfig_of(NAMESPACE, f"remotegpu-{account}"))


def access(kubeconfig: Path) -> Any:
    found = kubernetes_client.Configuration()
    asyncio.run(kubernetes_config.load_kube_config(str(kubeconfig), client_configuration=found))
    return found


def gated_pod(name: str, namespace: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {POD_LABEL: "true"},
            "annotations": {"theirs": "too"},
        },
        "spec": {
            "schedulingGates": [{"name": GATE}, {"name": "theirs.example.com/gate"}],
            "containers": [{"name": "c", "image": "i", "resources": {"limits": {MILLI: 250}}}],
        },
    }


def pod(name: str, namespace: str, **spec: object) -> Object:
    containers = [{"name": "c", "image": "i"}]
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers, **spec}}


def secret(name: str, labels: Object) -> Object:
    metadata = {"name": name, "namespace": NAMESPACE, "labels": labels}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata}


def get(server: ApiServer, kind: str, name: str, namespace: str = "default") -> Object:
    found: Object = json.loads(server.kubectl("get", kind, name, "-n", namespace, "-o", "json").stdout)
    return found


def names(server: ApiServer, kind: str, namespace: str = "default") -> list[str]:
    listing = server.kubectl("get", kind, "-n", namespace, "-o", "name").stdout.split()
    return [line.split("/")[1] for line in listing]


def status(server: ApiServer, kind: str, name: str, content: Object, namespace: str = "default") -> None:
    patch = f"-p={json.dumps({'status': content})}"
    server.kubectl("patch", kind, name, "-n", namespace, "--subresource=status", "--type=merge", patch)
