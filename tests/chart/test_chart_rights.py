"""The rights of each part: only those listed here, and only those that its pods need."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from support.apiserver import ApiServer
from support.chart import CHART, NAMESPACE, Object, named, pod_specs, render
from support.system import until

from remotegpu.api.kubernetes import USER_PREFIX

# (role, of which objects) -> verbs. `name` after a slash in brackets: only the object of that name.
CLUSTER_WIDE: dict[str, dict[str, str]] = {
    "remotegpu-operator": {
        "remotegpu.io/gpupools": "get list watch patch",
        "remotegpu.io/gpupools/status": "patch",
        "remotegpu.io/gpuclaims": "get list watch create delete prioritize",
        "remotegpu.io/gpuclaims/status": "patch",
        "/pods": "get list watch patch",
        "/nodes": "get list watch",
        "/resourcequotas": "get list watch",
        "scheduling.k8s.io/priorityclasses": "get list watch",
        "/events": "create",
        # The API server's address, for the appliances' network policy.
        "discovery.k8s.io/endpointslices [kubernetes]": "get",
        "admissionregistration.k8s.io/mutatingwebhookconfigurations [remotegpu]": "get patch",
    },
    "remotegpu-appliance": {
        "remotegpu.io/gpuclaims": "get list watch",
        "authentication.k8s.io/tokenreviews": "create",
    },
    "remotegpu-deviceplugin": {"remotegpu.io/gpupools": "list watch", "remotegpu.io/gpuclaims": "list watch"},
    # While `helm install`, `upgrade` or `rollback` run.
    "remotegpu-install": {"remotegpu.io/gpupools": "list create patch delete"},
    # While `helm uninstall` runs.
    "remotegpu-uninstall": {
        "admissionregistration.k8s.io/mutatingwebhookconfigurations [remotegpu]": "get delete",
        "admissionregistration.k8s.io/validatingadmissionpolicybindings [remotegpu]": "get delete",
        "/pods": "list patch",
        "/events": "create",
        "/nodes": "list",
        "/nodes/status": "patch",
        "remotegpu.io/gpupools": "list delete override",
        "remotegpu.io/gpuclaims": "list delete override",
        "remotegpu.io/gpupools/status": "patch",
        "remotegpu.io/gpuclaims/status": "patch",
        "rbac.authorization.k8s.io/clusterroles [remotegpu-nodekeys]": "get",
        "rbac.authorization.k8s.io/clusterrolebindings [remotegpu-nodekeys]": "patch",
    },
    # For six minutes after it.
    "remotegpu-nodekeys": {
        "/nodes": "list",
        "/nodes/status": "patch",
        "rbac.authorization.k8s.io/clusterroles [remotegpu-nodekeys]": "get delete",
    },
}
IN_ITS_NAMESPACE: dict[str, dict[str, str]] = {
    "remotegpu-operator": {
        "apps/statefulsets": "get list watch create patch delete",
        "/serviceaccounts/token [remotegpu-operator]": "create",
        "/services": "get list watch create patch delete",
        "/secrets": "get list watch create patch delete",
        "policy/poddisruptionbudgets": "get list watch create patch delete",
        "networking.k8s.io/networkpolicies": "get list watch create patch delete",
        "/pods": "delete",
        "coordination.k8s.io/leases": "get create update",
        "/configmaps": "get list create patch delete",
    },
    # Bound to nobody: for those who may read everybody's usage.
    "remotegpu-usage": {"/configmaps": "get list"},
    "remotegpu-uninstall": {
        "apps/deployments/scale [remotegpu-operator]": "patch",
        "apps/daemonsets [remotegpu-deviceplugin]": "get delete",
        "/pods [remotegpu-test]": "get delete",
        "apps/statefulsets": "list delete",
        "/services": "list delete",
        "/secrets": "list delete",
        "policy/poddisruptionbudgets": "list delete",
        "networking.k8s.io/networkpolicies": "list delete",
        "coordination.k8s.io/leases": "list delete",
        "batch/jobs": "create",
        "batch/jobs [remotegpu-nodekeys]": "get",
        "/serviceaccounts [remotegpu-nodekeys]": "patch",
    },
}
# The operator's additional rights where the chart has the dashboard.
REVIEWS = {
    "authentication.k8s.io/tokenreviews": "create",
    "authorization.k8s.io/subjectaccessreviews": "create",
}
HOOKS = {"install", "uninstall", "nodekeys"}


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> list[Object]:
    return render({}, tmp_path_factory.mktemp("rendered"))


def granted(objects: list[Object], kind: str) -> dict[str, dict[str, str]]:
    return {
        thing["metadata"]["name"]: {
            f"{group}/{resource}" + (f" [{', '.join(rule['resourceNames'])}]" if "resourceNames" in rule else ""): (
                " ".join(rule["verbs"])
            )
            for rule in thing["rules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
        }
        for thing in objects
        if thing["kind"] == kind
    }


def test_rights_are_exactly_the_listed_ones(objects: list[Object]) -> None:
    assert granted(objects, "ClusterRole") == CLUSTER_WIDE
    assert granted(objects, "Role") == IN_ITS_NAMESPACE
    assert {thing["metadata"]["namespace"] for thing in objects if thing["kind"] == "Role"} == {NAMESPACE}


def test_the_dashboard_adds_two_reviews_and_no_more(tmp_path: Path) -> None:
    objects = render({"dashboard": {"enabled": True}}, tmp_path)
    operator = CLUSTER_WIDE["remotegpu-operator"] | REVIEWS
    assert granted(objects, "ClusterRole") == CLUSTER_WIDE | {"remotegpu-operator": operator}
    assert granted(objects, "Role") == IN_ITS_NAMESPACE


def test_the_dashboard_is_reached_by_the_release_and_the_named_namespaces(tmp_path: Path) -> None:
    proxies = {"kubernetes.io/metadata.name": "proxies"}
    objects = render({"dashboard": {"enabled": True, "fromNamespaces": proxies}}, tmp_path)
    rules = named(objects, "NetworkPolicy", "remotegpu-operator")["spec"]["ingress"]
    assert rules[1:] == [
        {
            "from": [{"podSelector": {}}, {"namespaceSelector": {"matchLabels": proxies}}],
            "ports": [{"port": "dashboard"}],
        }
    ]
    (port,) = named(objects, "Service", "remotegpu-dashboard")["spec"]["ports"]
    container = named(objects, "Deployment", "remotegpu-operator")["spec"]["template"]["spec"]["containers"][0]
    assert port["targetPort"] in {each["name"] for each in container["ports"]}


# resource, object, verb: the answer of `kubectl auth can-i --list` for an account.
Right = tuple[str, str, str]
ELSEWHERE = "somebodys"


def listed(rights: dict[str, str]) -> set[Right]:
    """A table's entries, as kubectl names them."""
    found: set[Right] = set()
    for text, verbs in rights.items():
        path, _, name = text.removesuffix("]").partition(" [")
        group, resource, *sub = path.split("/")
        resource = "/".join((f"{resource}.{group}" if group else resource, *sub))
        found |= {(resource, name, verb) for verb in verbs.split()}
    return found


def can(server: ApiServer, account: str, namespace: str) -> set[Right]:
    """Asks the API server for an account's rights, in a namespace and outside namespaces."""
    user = f"--as=system:serviceaccount:{NAMESPACE}:{account}"
    text = server.kubectl("auth", "can-i", "--list", "--no-headers", user, "-n", namespace).stdout
    rows = [re.fullmatch(r"([^\s\[]*) *\[(.*?)\] +\[(.*?)\] +\[(.*?)\]", line.strip()) for line in text.splitlines()]
    found = [row.groups() for row in rows if row is not None]
    assert len(found) == len(text.splitlines()), text
    return {
        (resource or url, name, verb)
        for resource, urls, names, verbs in found
        for url in (urls.split() or [""])
        for name in (names.split() or [""])
        for verb in verbs.split()
    }


def test_the_api_server_grants_exactly_the_listed_rights(
    apiserver: ApiServer, objects: list[Object], tmp_path: Path
) -> None:
    """Asks as each account, in its namespace and in another; the rights of an account without roles are not ours. At
    last asks the operator's again, with the dashboard.
    """
    kinds = {"ClusterRole", "Role", "ClusterRoleBinding", "RoleBinding", "ServiceAccount"}
    ours = [thing for thing in objects if thing["kind"] in kinds]
    for name in (NAMESPACE, ELSEWHERE):
        apiserver.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    apiserver.apply(*ours)
    accounts = {thing["metadata"]["name"] for thing in ours if thing["kind"] == "ServiceAccount"}
    assert accounts > CLUSTER_WIDE.keys()
    anybodys = can(apiserver, "has-no-roles", NAMESPACE)
    assert anybodys, "everybody may ask what he may do"
    # The API server takes a role into account some moments after it was written.
    until(lambda: can(apiserver, "remotegpu-operator", NAMESPACE) > anybodys, 30, "the roles are in force")
    try:
        for account in sorted(accounts):
            everywhere = listed(CLUSTER_WIDE.get(account, {}))
            here = everywhere | listed(IN_ITS_NAMESPACE.get(account, {}))
            until(lambda: can(apiserver, account, NAMESPACE) - anybodys == here, 10, f"{account} may do {here}")  # noqa: B023
            assert can(apiserver, account, ELSEWHERE) - anybodys == everywhere
        apiserver.apply(*(each for each in render({"dashboard": {"enabled": True}}, tmp_path) if each["kind"] in kinds))
        with_reviews = listed(CLUSTER_WIDE["remotegpu-operator"] | REVIEWS)
        until(
            lambda: can(apiserver, "remotegpu-operator", ELSEWHERE) - anybodys == with_reviews, 10, "two reviews more"
        )
    finally:
        apiserver.kubectl("delete", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": ours}))


def test_nobody_has_a_wildcard_or_the_secrets_of_other_namespaces() -> None:
    for rights in (*CLUSTER_WIDE.values(), *IN_ITS_NAMESPACE.values()):
        assert not [text for text in (*rights, *rights.values()) if "*" in text]
    for rights in CLUSTER_WIDE.values():
        assert not [resource for resource in rights if "secrets" in resource or "exec" in resource]


def test_each_role_is_bound_to_the_account_of_its_name(objects: list[Object]) -> None:
    for thing in objects:
        if thing["kind"] in {"ClusterRoleBinding", "RoleBinding"}:
            name = thing["metadata"]["name"]
            assert thing["roleRef"]["name"] == name
            assert thing["subjects"] == [{"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}]


def test_only_who_has_rights_gets_a_token(objects: list[Object]) -> None:
    for name, spec in pod_specs(objects).items():
        with_token = spec["automountServiceAccountToken"]
        assert with_token == (spec.get("serviceAccountName") in CLUSTER_WIDE), name
    assert named(objects, "Deployment", "remotegpu-webhook")["spec"]["template"]["spec"]["serviceAccountName"] == (
        "remotegpu-webhook"
    )


def test_rights_of_hooks_live_as_long_as_the_hook(objects: list[Object]) -> None:
    for thing in objects:
        component = thing["metadata"]["labels"]["app.kubernetes.io/component"]
        annotations = thing["metadata"].get("annotations", {})
        assert ("helm.sh/hook" in annotations) == (component in {*HOOKS, "test"}), thing["metadata"]["name"]
        if component in HOOKS - {"nodekeys"}:
            assert annotations["helm.sh/hook-delete-policy"] == "before-hook-creation,hook-succeeded"


def test_names_are_fixed_and_namespaces_the_releases(objects: list[Object], tmp_path: Path) -> None:
    other = render({}, tmp_path, release="another")
    assert [(each["kind"], each["metadata"]["name"]) for each in other] == [
        (each["kind"], each["metadata"]["name"]) for each in objects
    ]
    cluster_scoped = {"CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding", "MutatingWebhookConfiguration"}
    cluster_scoped |= {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
    for thing in objects:
        assert ("namespace" in thing["metadata"]) == (thing["kind"] not in cluster_scoped), thing["metadata"]["name"]


def test_no_pod_of_ours_is_sent_to_our_webhook_but_the_test(objects: list[Object]) -> None:
    """The operator and the webhook must start before any webhook runs."""
    for thing in objects:
        template = thing["spec"]["template"] if thing["kind"] in {"Deployment", "DaemonSet", "Job"} else thing
        keys = [*(template["metadata"].get("annotations") or {})] if "metadata" in template else []
        assert not [key for key in keys if key.startswith((USER_PREFIX, f"status.{USER_PREFIX}"))]
    asking = [
        name for name, spec in pod_specs(objects).items() if "remotegpu/" in str(spec["containers"][0]["resources"])
    ]
    assert asking == ["Pod remotegpu-test"]


def test_pods_selected_by_policies_and_budgets_are_ours(objects: list[Object]) -> None:
    pods = [
        thing["spec"]["template"]["metadata"]["labels"]
        for thing in objects
        if thing["kind"] in {"Deployment", "DaemonSet"}
    ]
    for thing in objects:
        match thing["kind"]:
            case "NetworkPolicy":
                selector = thing["spec"]["podSelector"]["matchLabels"]
            case "PodDisruptionBudget":
                selector = thing["spec"]["selector"]["matchLabels"]
            case "Service":
                selector = thing["spec"]["selector"]
            case _:
                continue
        assert sum(selector.items() <= labels.items() for labels in pods) == 1, thing["metadata"]["name"]


def test_network_policies_let_in_only_named_ports(objects: list[Object]) -> None:
    ports = {
        thing["metadata"]["name"]: [port["port"] for rule in thing["spec"].get("ingress", []) for port in rule["ports"]]
        for thing in objects
        if thing["kind"] == "NetworkPolicy"
    }
    assert ports == {
        "remotegpu-operator": ["http"],
        "remotegpu-webhook": ["https", "http"],
        "remotegpu-deviceplugin": ["http"],
    }


def test_each_alert_has_a_section_of_the_runbook(tmp_path: Path) -> None:
    page = "https://docs.example.com/runbook/"
    values = {"metrics": {"prometheusRule": {"enabled": True, "runbook": page}}}
    (rule,) = (each for each in render(values, tmp_path) if each["kind"] == "PrometheusRule")
    alerts = rule["spec"]["groups"][0]["rules"]
    runbook = CHART.parents[1] / "docs" / "runbook.md"
    assert [each["alert"] for each in alerts] == re.findall(r"^## (\w+)$", runbook.read_text(), re.MULTILINE)
    assert [each["annotations"]["runbook_url"] for each in alerts] == [
        f"{page}#{each['alert'].lower()}" for each in alerts
    ]


def test_alerts_ask_for_metrics_that_exist() -> None:
    """Counters are exported with _total; the rules use nothing that no part exports."""
    sources = "".join(
        path.read_text()
        for folder in ("operator/remotegpu_operator", "remoting/remotegpu/appliance", "deviceplugin")
        for path in (CHART.parents[1] / folder).rglob("*.py")
    )
    for alert in yaml.safe_load((CHART / "files" / "alerts.yaml").read_text()):
        for metric in re.findall(r"remotegpu_\w+", alert["expr"]):
            name = metric.removesuffix("_total").removesuffix("_bucket").removesuffix("_count")
            gpu = name.startswith("remotegpu_gpu_") and 'f"remotegpu_gpu_{name}"' in sources
            assert f'"{name}' in sources or gpu, metric
