"""The status of claims and pools, which operator and appliances trust: who may write it, by every possible way."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from support.apiserver import ApiServer, api_server
from support.chart import NAMESPACE, render
from support.system import until

THEIRS = "theirs"
OWNER, OPERATOR, RESTORER = (
    f"system:serviceaccount:{namespace}:{name}"
    for namespace, name in ((THEIRS, "owner"), (NAMESPACE, "remotegpu-operator"), (NAMESPACE, "restorer"))
)
RBAC = "rbac.authorization.k8s.io"
CLAIM = {
    "apiVersion": "remotegpu.io/v1alpha1",
    "kind": "GPUClaim",
    "metadata": {"name": "mine", "namespace": THEIRS},
    "spec": {"fraction": "0.25"},
}
STOLEN = {"phase": "Allocated", "milli": 1000}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    kinds = {"CustomResourceDefinition", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
    objects = render({}, tmp_path_factory.mktemp("rendered"))
    with api_server() as it:
        for name in (NAMESPACE, THEIRS):
            it.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        it.apply(*(thing for thing in objects if thing["kind"] in kinds))
        it.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        # The roles of an operator, and of a person who restores a backup.
        verbs = {"remotegpu-operator": ["get", "patch", "update"], "restorer": ["get", "patch", "update", "override"]}
        for name, allowed in verbs.items():
            it.apply(
                {
                    "apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": name},
                    "rules": [{
                        "apiGroups": ["remotegpu.io"],
                        "resources": ["gpuclaims", "gpuclaims/status", "gpupools", "gpupools/status"],
                        "verbs": allowed,
                    }],
                },
                binding("ClusterRoleBinding", name, name, NAMESPACE),
            )  # fmt: skip
        # The owner of a namespace has every right in it, as platforms give it.
        it.apply(binding("RoleBinding", "cluster-admin", "owner", THEIRS))
        it.apply(CLAIM)
        until(lambda: "remotegpu-status" in written(it, OWNER, STOLEN), 60, "the policy is in force")
        yield it


def binding(kind: str, role: str, account: str, namespace: str) -> dict[str, object]:
    placed = {"namespace": namespace} if kind == "RoleBinding" else {}
    return {
        "apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": {"name": account} | placed,
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
    }  # fmt: skip


def written(server: ApiServer, user: str, status: object) -> str:
    """Patches the claim's status as this user. Returns kubectl's error output; empty if it was allowed."""
    patch = json.dumps({"status": status})
    arguments = ["patch", "gpuclaim", "mine", "-n", THEIRS, "--subresource=status", "--type=merge", "-p", patch]
    return server.kubectl(*arguments, f"--as={user}", check=False).stderr


def stored(server: ApiServer) -> dict[str, object]:
    found: dict[str, object] = json.loads(server.kubectl("get", "gpuclaim", "mine", "-n", THEIRS, "-o", "json").stdout)
    return found


def test_who_owns_a_namespace_writes_no_status(server: ApiServer) -> None:
    before = stored(server)
    whole = json.dumps(before | {"status": STOLEN})
    refused = [written(server, OWNER, STOLEN)]
    for arguments in (["replace"], ["apply", "--server-side", "--force-conflicts"]):
        given = whole
        if arguments[0] == "apply":
            given = json.dumps(CLAIM | {"status": STOLEN})
        asked = [*arguments, "--subresource=status", f"--as={OWNER}", "-f", "-"]
        refused.append(server.kubectl(*asked, stdin=given, check=False).stderr)
    for said in refused:
        assert "remotegpu-status" in said and "override" in said and OWNER in said, said
    assert stored(server) == before


def test_a_status_given_at_creation_is_none(server: ApiServer) -> None:
    new = CLAIM | {"metadata": {"name": "new", "namespace": THEIRS}, "status": STOLEN}
    server.kubectl("create", "-f", "-", f"--as={OWNER}", stdin=json.dumps(new))
    found = json.loads(server.kubectl("get", "gpuclaim", "new", "-n", THEIRS, "-o", "json").stdout)
    assert found.get("status", {}).get("phase", "Pending") == "Pending"


@pytest.mark.parametrize("user", [OPERATOR, RESTORER])
def test_the_operator_and_who_restores_a_backup_write_it(server: ApiServer, user: str) -> None:
    assert written(server, user, {"message": user}) == ""
    status = stored(server)["status"]
    assert isinstance(status, dict) and status["message"] == user


def test_the_spec_is_still_its_owners(server: ApiServer) -> None:
    patch = json.dumps({"metadata": {"labels": {"a": "b"}}})
    asked = ["patch", "gpuclaim", "mine", "-n", THEIRS, "--type=merge", "-p", patch, f"--as={OWNER}"]
    assert server.kubectl(*asked, check=False).stderr == ""
