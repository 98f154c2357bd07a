"""The checks of a cluster, from its objects. Only `read` calls the API server."""

import base64
import binascii
import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cryptography import x509

from remotegpu.api.claims import Phase
from remotegpu.api.kubernetes import (
    API_VERSION,
    CLAIMS,
    COMPONENT_LABEL,
    FRACTION,
    GROUP,
    MANAGER_LABEL,
    MILLI,
    NAME_LABEL,
    POOLS,
    VERSION,
)
from remotegpu.api.pools import AppliancePhase
from remotegpu.api.quantities import parse_quantity
from remotegpu.cli.cluster.objects import Cluster, Object, RefusedError
from remotegpu.rpc import pb

_OURS: Final = f"{NAME_LABEL}=remotegpu"
_CRDS: Final = (f"{POOLS}.{GROUP}", f"{CLAIMS}.{GROUP}")
_POLICIES: Final = ("remotegpu", *(f"remotegpu-{of}" for of in ("claims", "claims-system", "operator", "status")))
_WEBHOOK: Final = "remotegpu"
_QUOTA: Final = f"requests.{MILLI}"
# Certificates are renewed a month before they expire. With less time left, the renewal does not work.
_LEAST_LIFE: Final = datetime.timedelta(days=7)
_LONG_WAIT: Final = datetime.timedelta(minutes=10)
_INSTALL: Final = "helm upgrade --install remotegpu CHART --namespace remotegpu-system --create-namespace"

# The path and the label selector of each kind to list.
_LISTS: Final = {
    "deployments": ("/apis/apps/v1/deployments", _OURS),
    "daemonsets": ("/apis/apps/v1/daemonsets", _OURS),
    "nodes": ("/api/v1/nodes", ""),
    "pools": (f"/apis/{API_VERSION}/{POOLS}", ""),
    "claims": (f"/apis/{API_VERSION}/{CLAIMS}", ""),
    "quotas": ("/api/v1/resourcequotas", ""),
    "secrets": ("/api/v1/secrets", f"{MANAGER_LABEL}=remotegpu-operator"),
    "leases": ("/apis/coordination.k8s.io/v1/leases", ""),
}
_ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"
# The paths of single objects, which may be missing, by kind.
_SINGLE: Final = {
    "definitions": [f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}" for name in _CRDS],
    "webhooks": [f"{_ADMISSION}/mutatingwebhookconfigurations/{_WEBHOOK}"],
    "policies": [f"{_ADMISSION}/validatingadmissionpolicies/{name}" for name in _POLICIES],
    "bindings": [f"{_ADMISSION}/validatingadmissionpolicybindings/{name}" for name in _POLICIES],
}
_PROBE: Final[Object] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "remotegpu-doctor", "namespace": "default"},
    "spec": {
        "serviceAccountName": "default",
        "containers": [{"name": "probe", "image": "none", "resources": {"limits": {FRACTION: "0.1"}}}],
    },
}


@dataclass(frozen=True, slots=True)
class Facts:
    now: datetime.datetime
    version: str  # the API server's version; empty if it does not answer
    found: Mapping[str, Sequence[Object]]
    troubles: Mapping[str, str]  # the errors of kinds that could not be read
    probe: Object | str  # a pod that asks for a share, as it would be stored; or an error
    probe_denied: bool = False  # whether the error is that this user may not create pods


def read(cluster: Cluster, now: datetime.datetime) -> Facts:
    found: dict[str, Sequence[Object]] = {}
    troubles: dict[str, str] = {}
    try:
        version = str(cluster.get("/version")["gitVersion"])
    except RefusedError as error:
        return Facts(now, "", {}, {"version": str(error)}, "")
    for kind, (path, selector) in _LISTS.items():
        try:
            found[kind] = cluster.list(path, selector)
        except RefusedError as error:
            troubles[kind] = str(error)
    for kind, paths in _SINGLE.items():
        try:
            found[kind] = list(filter(None, (_there(cluster, path) for path in paths)))
        except RefusedError as error:
            troubles[kind] = str(error)
    try:
        probe: Object | str = cluster.try_to_create("/api/v1/namespaces/default/pods", _PROBE)
        denied = False
    except RefusedError as error:
        probe = str(error)
        denied = error.status == 403 and "cannot create resource" in probe
    return Facts(now, version, found, troubles, probe, denied)


def _there(cluster: Cluster, path: str) -> Object | None:
    try:
        return cluster.get(path)
    except RefusedError as error:
        if error.status == 404:
            return None
        raise


def checks(facts: Facts) -> Iterator[pb.Check]:
    """Yields the results of all checks. A check comes after those that it depends on."""
    if not facts.version:
        fix = "kubectl version; kubectl config get-contexts"
        yield _check("API server", facts.troubles["version"], good="", fix=fix)
        return
    yield _check("API server", "", good=f"{facts.version} answers", fix="")
    for name, kinds, make in _CHECKS:
        troubles = [facts.troubles[kind] for kind in kinds if kind in facts.troubles]
        if troubles:
            fix = f"as somebody who may: kubectl auth can-i list {kinds[0]} --all-namespaces"
            yield _check(name, f"cannot be looked at: {troubles[0]}", good="", fix=fix, severity="warn")
        else:
            yield from make(facts)


def _definitions(facts: Facts) -> Iterator[pb.Check]:
    by_name = {_name(each): each for each in facts.found["definitions"]}
    for name in _CRDS:
        bad = f"{name} is not there"
        if (crd := by_name.get(name)) is not None:
            served = [each["name"] for each in crd["spec"]["versions"] if each["served"]]
            bad = "" if VERSION in served else f"it serves {', '.join(served)}, and this program speaks {VERSION}"
            bad = bad or _not_true(crd, "Established")
        yield _check(f"definition {name}", bad, good=f"{VERSION} is served", fix=_INSTALL)


def _workloads(facts: Facts) -> Iterator[pb.Check]:
    for component in ("operator", "webhook"):
        mine = [each for each in facts.found["deployments"] if _component(each) == component]
        if not mine:
            yield _check(component, f"there is no Deployment of the {component}", good="", fix=_INSTALL)
        for each in mine:
            wanted, ready = each["spec"].get("replicas", 1), each.get("status", {}).get("readyReplicas", 0)
            fix = f"kubectl -n {_namespace(each)} describe pods -l {_OURS},{COMPONENT_LABEL}={component}"
            bad = "" if ready >= wanted else f"{ready} of {wanted} replicas of {_name(each)} are ready"
            severity = "warn" if ready else "fail"
            yield _check(component, bad, good=f"{ready} of {wanted} replicas are ready", fix=fix, severity=severity)


def _leader(facts: Facts) -> Iterator[pb.Check]:
    leases = [each for each in facts.found["leases"] if _name(each) == "remotegpu-operator"]
    bad = "no operator has ever led: there is no Lease remotegpu-operator"
    fix, holder = _INSTALL, ""
    for lease in leases:
        spec = lease["spec"]
        fix = f"kubectl -n {_namespace(lease)} logs -l {_OURS},{COMPONENT_LABEL}=operator --tail=50"
        age = facts.now - datetime.datetime.fromisoformat(spec["renewTime"]) if spec.get("renewTime") else None
        holder = spec.get("holderIdentity", "")
        fresh = age is not None and age.total_seconds() <= 2 * spec.get("leaseDurationSeconds", 15)
        bad = "" if holder and fresh else f"no operator leads: the Lease of {holder or 'nobody'} is not renewed"
    yield _check("operator leads", bad, good=holder, fix=fix)


def _webhook(facts: Facts) -> Iterator[pb.Check]:
    """Checks that the API server calls the webhook, by the dry run of a pod."""
    name = "webhook is called"
    namespace = _installed_in(facts)
    fix = (
        f"kubectl -n {namespace} get endpointslices,pods -l {COMPONENT_LABEL}=webhook; kubectl -n {namespace} logs "
        f"-l {COMPONENT_LABEL}=webhook --tail=50"
    )
    if not facts.found["webhooks"]:
        yield _check(name, f"there is no MutatingWebhookConfiguration {_WEBHOOK}", good="", fix=_INSTALL)
    elif facts.probe_denied:
        said = "not tried: you may create no pods in namespace default"
        yield _check(name, said, good="", fix="as somebody who may: kubectl auth can-i create pods", severity="warn")
    elif isinstance(facts.probe, str):
        yield _check(name, f"a pod with {FRACTION}: 0.1 would be refused: {facts.probe}", good="", fix=fix)
    else:
        limits = facts.probe["spec"]["containers"][0]["resources"]["limits"]
        bad = "" if MILLI in limits else f"a pod with {FRACTION}: 0.1 is stored as it is, so nobody gives it a share"
        yield _check(name, bad, good="a pod that asks for a share is held until it has one", fix=fix)


def _certificates(facts: Facts) -> Iterator[pb.Check]:
    for configuration in facts.found["webhooks"]:
        bundles = {each["clientConfig"].get("caBundle", "") for each in configuration["webhooks"]}
        expiries = [_last_expiry(_decoded(bundle)) for bundle in bundles]
        bad = "the operator has put no authority there yet" if None in expiries else ""
        soonest = min(filter(None, expiries), default=facts.now)
        yield _lasts("webhook's authority", soonest, facts, bad)
    if "secrets" in facts.troubles:
        bad = f"cannot be looked at: {facts.troubles['secrets']}"
        fix = "as somebody who may: kubectl auth can-i list secrets --all-namespaces"
        yield _check("certificates", bad, good="", fix=fix, severity="warn")
    for secret in facts.found.get("secrets", ()):
        if encoded := (secret.get("data") or {}).get("tls.crt"):
            expiry = _last_expiry(_decoded(encoded))
            bad = "" if expiry else "its tls.crt is no certificate"
            yield _lasts(f"certificate {_name(secret)}", expiry or facts.now, facts, bad)


def _lasts(name: str, expiry: datetime.datetime, facts: Facts, bad: str) -> pb.Check:
    left = expiry - facts.now
    namespace = _installed_in(facts)
    if not bad and left < _LEAST_LIFE:
        bad = f"it ended on {expiry:%Y-%m-%d}" if left <= datetime.timedelta() else f"it ends in {left.days} days"
    fix = f"kubectl -n {namespace} logs -l {COMPONENT_LABEL}=operator --tail=100 | grep -i certificate"
    return _check(name, bad, good=f"until {expiry:%Y-%m-%d}", fix=fix)


def _device_plugins(facts: Facts) -> Iterator[pb.Check]:
    """Checks the resources of nodes, not the pods of plugins: a node offers shares once its plugin has registered."""
    sets = [each for each in facts.found["daemonsets"] if _component(each) == "deviceplugin"]
    if not sets:
        yield _check("device plugin", "there is no DaemonSet of the device plugin", good="", fix=_INSTALL)
        return
    nodes = [each for each in facts.found["nodes"] if not each["spec"].get("unschedulable") and _is_ready(each)]
    lacking = [
        _name(each) for each in nodes if not parse_quantity(each["status"].get("allocatable", {}).get(MILLI, "0"))
    ]
    namespace = _namespace(sets[0])
    for node in lacking:
        fix = f"kubectl -n {namespace} get pods -l {COMPONENT_LABEL}=deviceplugin --field-selector spec.nodeName={node}"
        yield _check(f"device plugin on {node}", f"the node offers no {MILLI}", good="", fix=fix, severity="warn")
    if len(lacking) < len(nodes) or not nodes:
        good = f"{len(nodes) - len(lacking)} of {len(nodes)} nodes offer shares"
        yield _check("device plugins", "" if nodes else "no node is ready", good=good, fix="kubectl get nodes")


def _pools(facts: Facts) -> Iterator[pb.Check]:
    if not facts.found["pools"]:
        fix = "kubectl apply -f - with a GPUPool: `kubectl explain gpupool.spec`"
        yield _check("pools", "there is no GPUPool", good="", fix=fix, severity="warn")
    for pool in facts.found["pools"]:
        status = pool.get("status", {})
        appliances = status.get("appliances", ())
        ready = sum(each["phase"] == AppliancePhase.READY for each in appliances)
        lost = [
            f"{each['name']} is {each['phase']}: {each.get('message') or each.get('reason', '')}"
            for each in appliances
            if each["phase"] != AppliancePhase.READY
        ]
        broken = [
            f"{gpu['uuid']} of {each['name']}: {gpu.get('message', '')}"
            for each in appliances
            for gpu in each.get("gpus", ())
            if not gpu["healthy"]
        ]
        unmet = [
            _not_true(pool, kind)
            for kind in ("Ready", "CertificatesRenewed", "SchedulesUnderstood")
            if any(each["type"] == kind for each in status.get("conditions", ()))
        ]
        bad = "; ".join(filter(None, [*unmet, *lost, *broken])) or (
            "" if ready else "it has no appliance that is ready"
        )
        fix = f"kubectl describe gpupool {_name(pool)}"
        good = f"{ready} of {len(appliances)} appliances are ready, {status.get('gpus', 0)} GPUs"
        yield _check(f"pool {_name(pool)}", bad, good=good, fix=fix, severity="warn" if ready else "fail")


def _quotas(facts: Facts) -> Iterator[pb.Check]:
    mine = [each for each in facts.found["quotas"] if _QUOTA in (each["spec"].get("hard") or {})]
    if not mine:
        yield _check("quotas", "", good="no namespace has one for shares", fix="")
    for quota in mine:
        hard = quota["spec"]["hard"][_QUOTA]
        used = (quota.get("status", {}).get("used") or {}).get(_QUOTA, "0")
        full = parse_quantity(used) >= parse_quantity(hard)
        where = f"{_namespace(quota)}/{_name(quota)}"
        bad = f"{used} of {hard} thousandths of a GPU are used: what asks for more waits" if full else ""
        fix = f"kubectl -n {_namespace(quota)} get gpuclaims; kubectl -n {_namespace(quota)} edit quota {_name(quota)}"
        good = f"{used} of {hard} thousandths of a GPU are used"
        yield _check(f"quota {where}", bad, good=good, fix=fix, severity="warn")


def _policies(facts: Facts) -> Iterator[pb.Check]:
    there = {_name(each) for each in facts.found["policies"]}
    bound = {each["spec"]["policyName"] for each in facts.found["bindings"]}
    lacking = [name for name in _POLICIES if name not in there & bound]
    bad = f"not in force: {', '.join(lacking)}; who goes around the webhook is not stopped" if lacking else ""
    yield _check("admission policies", bad, good=f"{len(_POLICIES)} are in force", fix=_INSTALL)


def _waiting(facts: Facts) -> Iterator[pb.Check]:
    waiting = [
        each for each in facts.found["claims"] if each.get("status", {}).get("phase", Phase.PENDING) == Phase.PENDING
    ]
    old = [each for each in waiting if facts.now - _created(each) > _LONG_WAIT]
    good = f"{len(facts.found['claims'])} claims, {len(waiting)} of them wait"
    first = min(old, key=_created, default=None)
    where = f"{_namespace(first)}/{_name(first)}" if first else ""
    bad = f"{len(old)} claims have waited for more than 10 minutes, {where} the longest" if first else ""
    fix = f"remotegpu why {_name(first)} --claim -n {_namespace(first)}" if first else ""
    yield _check("claims", bad, good=good, fix=fix, severity="warn")


_CHECKS: Final[tuple[tuple[str, tuple[str, ...], Callable[[Facts], Iterator[pb.Check]]], ...]] = (
    ("definitions", ("definitions",), _definitions),
    ("operator and webhook", ("deployments",), _workloads),
    ("operator leads", ("leases",), _leader),
    ("webhook is called", ("webhooks",), _webhook),
    ("certificates", ("webhooks",), _certificates),
    ("admission policies", ("policies", "bindings"), _policies),
    ("device plugin", ("daemonsets", "nodes"), _device_plugins),
    ("pools", ("pools",), _pools),
    ("quotas", ("quotas",), _quotas),
    ("claims", ("claims",), _waiting),
)


def _check(name: str, bad: str, *, good: str, fix: str, severity: str = "fail") -> pb.Check:
    return pb.Check(name=name, status=severity if bad else "ok", message=bad or good, fix=fix if bad else "")


def _name(thing: Object) -> str:
    return str(thing["metadata"]["name"])


def _namespace(thing: Object) -> str:
    return str(thing["metadata"]["namespace"])


def _component(thing: Object) -> str:
    return str(thing["metadata"].get("labels", {}).get(COMPONENT_LABEL, ""))


def _created(thing: Object) -> datetime.datetime:
    return datetime.datetime.fromisoformat(thing["metadata"]["creationTimestamp"])


def _installed_in(facts: Facts) -> str:
    return next((_namespace(each) for each in facts.found.get("deployments", ())), "remotegpu-system")


def _conditions(thing: Object) -> Iterable[Mapping[str, Any]]:
    found: Iterable[Mapping[str, Any]] = thing.get("status", {}).get("conditions", ())
    return found


def _not_true(thing: Object, kind: str) -> str:
    """Returns the reason why a condition is not True; empty if it is True."""
    for each in _conditions(thing):
        if each["type"] == kind:
            return "" if each["status"] == "True" else f"{kind} is {each['status']}: {each.get('message', '')}"
    return f"nobody has said {kind} yet"


def _is_ready(node: Object) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True" for each in _conditions(node))


def _decoded(encoded: str) -> str:
    try:
        return base64.b64decode(encoded, validate=True).decode(errors="replace")
    except binascii.Error:
        return ""


def _last_expiry(pem: str) -> datetime.datetime | None:
    """Returns the latest expiry of the certificates in a PEM text; None if it has none."""
    try:
        return max(each.not_valid_after_utc for each in x509.load_pem_x509_certificates(pem.encode()))
    except ValueError:
        return None
