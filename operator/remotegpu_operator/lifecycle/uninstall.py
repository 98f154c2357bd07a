"""The chart's hook before uninstall: removes everything that would make pods wait for remotegpu.

The order matters:
1. The admission webhook is deleted, so that no new pod gets our gate.
2. The operator stops. Otherwise it would create its objects again.
3. The device plugin stops, and our resources are removed from the nodes. Otherwise a released pod could start without a
   share.
4. The gates of waiting pods are removed.
5. The objects that the operator created are deleted. Pods, claims and pools that people created stay; claims and pools
   lose their status.
"""

import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import Any, Final

import yaml

from remotegpu.api.kubernetes import (
    API_VERSION,
    CLAIMS,
    COMPONENT_LABEL,
    GATE,
    MANAGER_LABEL,
    NAME_LABEL,
    POD_LABEL,
    POD_LABEL_VALUE,
)
from remotegpu_operator.builders.pods import gated
from remotegpu_operator.cluster.events import EVENTS, event
from remotegpu_operator.cluster.kube import PODS, Api, ApiError, Object, Resource, configuration
from remotegpu_operator.lifecycle import nodekeys
from remotegpu_operator.lifecycle.install import CHART_POOLS, GPUPOOLS

_log = logging.getLogger(__name__)

ADMISSION_NAME: Final = "remotegpu"
ADMISSION: Final = tuple(
    Resource("admissionregistration.k8s.io/v1", f"{kind.lower()}s", kind)
    for kind in ("MutatingWebhookConfiguration", "ValidatingAdmissionPolicyBinding")
)
DEPLOYMENTS: Final = Resource("apps/v1", "deployments", "Deployment")
DAEMON_SETS: Final = Resource("apps/v1", "daemonsets", "DaemonSet")
JOBS: Final = Resource("batch/v1", "jobs", "Job")
ACCOUNTS: Final = Resource("v1", "serviceaccounts", "ServiceAccount")
ROLE_BINDINGS: Final = Resource("rbac.authorization.k8s.io/v1", "clusterrolebindings", "ClusterRoleBinding")
GPUCLAIMS: Final = Resource(API_VERSION, CLAIMS, "GPUClaim")
# The kinds of objects that the operator creates in its own namespace.
MADE: Final = (
    Resource("apps/v1", "statefulsets", "StatefulSet"),
    Resource("v1", "services", "Service"),
    Resource("v1", "secrets", "Secret"),
    Resource("policy/v1", "poddisruptionbudgets", "PodDisruptionBudget"),
    Resource("networking.k8s.io/v1", "networkpolicies", "NetworkPolicy"),
    Resource("coordination.k8s.io/v1", "leases", "Lease"),
)
MADE_BY_OPERATOR: Final = f"{MANAGER_LABEL}=remotegpu-operator"
NODE_KEYS_JOB: Final = Path("/etc/remotegpu/uninstall/nodekeys.yaml")
_STOP_SECONDS: Final = 60.0


async def uninstall(api: Api, namespace: str, node_keys_job: Object) -> None:
    for resource in ADMISSION:
        await _delete_named(api, resource, None, ADMISSION_NAME)
    await _scale_to_zero(api, namespace, "remotegpu-operator")
    await _delete_named(api, DAEMON_SETS, namespace, "remotegpu-deviceplugin")
    await _until_stopped(api, namespace, "operator", "deviceplugin")
    await nodekeys.remove_keys(api)
    await _release_pods(api)
    await _forget_shares(api)
    for resource in MADE:
        for thing in (await api.list(resource, namespace, MADE_BY_OPERATOR))[0]:
            await _delete(api, resource, thing)
    # Helm keeps the pod of `helm test` for its log.
    await _delete_named(api, PODS, namespace, "remotegpu-test")
    await _clean_nodes_later(api, namespace, node_keys_job)


async def _scale_to_zero(api: Api, namespace: str, name: str) -> None:
    try:
        await api.patch(DEPLOYMENTS, namespace, name, {"spec": {"replicas": 0}}, "scale")
    except ApiError as error:
        if not error.gone:
            raise


async def _until_stopped(api: Api, namespace: str, *components: str) -> None:
    labels = f"{NAME_LABEL}=remotegpu,{COMPONENT_LABEL} in ({','.join(components)})"
    try:
        async with asyncio.timeout(_STOP_SECONDS):
            while True:
                if not (await api.list(PODS, namespace, labels))[0]:
                    return
                await asyncio.sleep(0.5)
    except TimeoutError:
        # A node is probably lost, and then its programs cannot reach the API server.
        _log.warning("%s did not stop within %.0f s; continuing", " and ".join(components), _STOP_SECONDS)


async def _release_pods(api: Api) -> None:
    """Removes our gate from every gated pod, and writes an Event about it. The pods belong to users, so they stay."""
    while waiting := [pod for pod in (await api.list(PODS, labels=f"{POD_LABEL}={POD_LABEL_VALUE}"))[0] if gated(pod)]:
        for pod in waiting:
            metadata = pod["metadata"]
            gates = [gate for gate in pod["spec"]["schedulingGates"] if gate["name"] != GATE]
            body = {
                "metadata": {"resourceVersion": metadata["resourceVersion"]},
                "spec": {"schedulingGates": gates or None},
            }
            try:
                await api.patch(PODS, metadata["namespace"], metadata["name"], body)
            except ApiError as error:
                # Another client has changed or deleted the pod: the next round tries again.
                if not error.conflict and not error.gone:
                    raise
                continue
            await _tell(api, pod)


async def _tell(api: Api, pod: Object) -> None:
    message = (
        "remotegpu was uninstalled and no node offers a share: delete the pod, or install remotegpu and create it again"
    )
    try:
        await api.create(EVENTS, pod["metadata"]["namespace"], event(PODS, pod, "Uninstalled", message, warning=True))
    except ApiError as error:
        # The namespace may be terminating. The uninstall must continue.
        _log.warning("no Event on pod %s: %s", pod["metadata"]["name"], error)


async def _forget_shares(api: Api) -> None:
    """Deletes the claims of pods and the chart's pools. Clears the status of claims and pools that people created."""
    for claim in await _existing(api, GPUCLAIMS):
        if "pod" in claim["spec"]:
            await _delete(api, GPUCLAIMS, claim)
        else:
            await _reset(api, GPUCLAIMS, claim)
    charts = {pool["metadata"]["uid"] for pool in await _existing(api, GPUPOOLS, CHART_POOLS)}
    for pool in await _existing(api, GPUPOOLS):
        await (_delete if pool["metadata"]["uid"] in charts else _reset)(api, GPUPOOLS, pool)


async def _existing(api: Api, resource: Resource, labels: str = "") -> list[Object]:
    """Lists all objects of a kind. Returns an empty list if the CustomResourceDefinition is deleted already."""
    try:
        return (await api.list(resource, labels=labels))[0]
    except ApiError as error:
        if not error.gone:
            raise
        return []


async def _clean_nodes_later(api: Api, namespace: str, job: Object) -> None:
    """Starts the Job of nodekeys.py, which runs longer than this program.

    Kubernetes later deletes the Job's rights: the ServiceAccount with the Job, and the ClusterRoleBinding with the
    ClusterRole, which the Job deletes at its end.
    """
    try:
        made = await api.create(JOBS, namespace, job)
    except ApiError as error:
        if not error.conflict:
            raise
        made = await api.get(JOBS, namespace, job["metadata"]["name"])
    role = await api.get(nodekeys.CLUSTER_ROLES, None, nodekeys.NAME)
    await api.patch(ACCOUNTS, namespace, nodekeys.NAME, _owned_by(JOBS, made))
    await api.patch(ROLE_BINDINGS, None, nodekeys.NAME, _owned_by(nodekeys.CLUSTER_ROLES, role))


def _owned_by(resource: Resource, owner: Object) -> Object:
    metadata = owner["metadata"]
    reference = {"apiVersion": resource.api, "kind": resource.kind, "name": metadata["name"], "uid": metadata["uid"]}
    return {"metadata": {"ownerReferences": [reference]}}


async def _delete_named(api: Api, resource: Resource, namespace: str | None, name: str) -> None:
    try:
        await _delete(api, resource, await api.get(resource, namespace, name))
    except ApiError as error:
        if not error.gone:
            raise


async def _delete(api: Api, resource: Resource, thing: Object) -> None:
    metadata = thing["metadata"]
    await api.delete(resource, metadata.get("namespace"), metadata["name"], metadata["uid"])


async def _reset(api: Api, resource: Resource, thing: Object) -> None:
    metadata = thing["metadata"]
    try:
        await api.patch(resource, metadata.get("namespace"), metadata["name"], {"status": None}, "status")
    except ApiError as error:
        if not error.gone:
            raise


async def run(namespace: str, node_keys_job: Object, found: Any = None) -> None:
    async with Api(found or await configuration()) as api:
        await uninstall(api, namespace, node_keys_job)


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    asyncio.run(run(os.environ["POD_NAMESPACE"], yaml.safe_load(NODE_KEYS_JOB.read_text())))


if __name__ == "__main__":
    main()
