"""The table of requests that the API server sends to the webhook. The chart's configuration is generated from it.

The API server evaluates the conditions, which are in CEL. So while the webhook is down, only requests for a share fail.
The conditions see objects before their validation: any part of a path may be missing or null.
"""

from dataclasses import dataclass
from typing import Any, Final

from remotegpu.api.kubernetes import FRACTION, GATE, RESOURCE_PREFIX, STATUS_PREFIX, USER_PREFIX
from remotegpu.api.pods import Path
from remotegpu_operator.webhook.template import HELM, LAST_APPLIED

PODS_PATH: Final = "/mutate-pods"
TEMPLATES_PATH: Final = "/mutate-templates"

# A mirror pod shows a static pod that a kubelet already runs. A pod that looks like one but is not from a kubelet
# counts as an ordinary pod.
NOT_A_MIRROR_POD: Final = (
    "!('kubernetes.io/config.mirror' in object.metadata.?annotations.orValue({}) &&\n"
    "  'system:nodes' in request.userInfo.?groups.orValue([]))"
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One webhook of the configuration. The API server's error messages about refused pods contain its name."""

    name: str
    url_path: str
    # Resources as (group, plural), all of version v1.
    resources: tuple[tuple[str, str], ...]
    operations: tuple[str, ...]
    # The path of the pod spec in an object of these kinds.
    spec: Path
    # Conditions in CEL, by name. The API server calls the webhook only if all of them are true.
    conditions: dict[str, str]

    def as_webhook(self) -> dict[str, Any]:
        """Returns the entry for a MutatingWebhookConfiguration, with the path in place of the complete clientConfig."""
        groups = sorted({group for group, _ in self.resources})
        return {
            "name": self.name,
            "path": self.url_path,
            "rules": [
                {
                    "apiGroups": [group],
                    "apiVersions": ["v1"],
                    "resources": [plural for its_group, plural in self.resources if its_group == group],
                    "operations": list(self.operations),
                    "scope": "Namespaced",
                }
                for group in groups
            ],
            "matchConditions": [{"name": name, "expression": text} for name, text in self.conditions.items()],
            "matchPolicy": "Equivalent",
            # Another webhook or a LimitRange may add a fraction after the first pass.
            "reinvocationPolicy": "IfNeeded",
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "timeoutSeconds": 5,
            "admissionReviewVersions": ["v1"],
        }


def _any_container(spec: Path, test: str) -> str:
    """Returns the condition that `test` is true for a container `c` of the pod spec at `spec`."""
    lists = ", ".join(_optional("object", (*spec, name)) for name in ("containers", "initContainers"))
    return f"[{lists}].exists(l,\n  l.orValue(null) != null && l.orValue([]).exists(c, {test}))"


def _any_resource(test: str) -> str:
    """Returns the condition that `test` is true for the name `k` of a resource of container `c`."""
    return f"[c.?resources.?limits, c.?resources.?requests].exists(m, m.orValue({{}}).exists(k, {test}))"


def _any_key(where: str, *prefixes: str) -> str:
    tests = " || ".join(f"k.startsWith('{prefix}')" for prefix in prefixes)
    return f"object.metadata.?{where}.orValue({{}}).exists(k, {tests})"


def _optional(root: str, path: Path) -> str:
    return root + "".join(f".?{key}" for key in path)


def _pod_condition() -> str:
    """Returns the condition for pods. An update of a pod counts only if it has a fraction, as in the pod's manifest."""
    names = (
        _any_container(("spec",), _any_resource(f"k.startsWith('{RESOURCE_PREFIX}')")),
        _any_key("annotations", USER_PREFIX, STATUS_PREFIX),
        _any_key("labels", STATUS_PREFIX),
        f"object.spec.?schedulingGates.orValue([]).exists(g, g.name == '{GATE}')",
    )
    created = " ||\n".join(names)
    return f"request.operation == 'CREATE' ? (\n{created}) : (\n{_contains_fraction(('spec',))})"


def _contains_fraction(spec: Path) -> str:
    return _any_container(spec, _any_resource(f"k == '{FRACTION}'"))


def _template_condition(spec: Path) -> str:
    return f"{_contains_fraction(spec)} ||\nrequest.operation == 'UPDATE' && (\n{_withdraws(spec)})"


def _withdraws(spec: Path) -> str:
    """Returns the condition that an update may remove a fraction; `template.without_withdrawn` then checks exactly.

    The update may be a client-side apply, a server-side apply, or Helm's. Each of them changes only its own record, so
    only a record of the update's own manager counts.
    """
    applied = f"metadata.?annotations[?'{LAST_APPLIED}'].orValue('')"
    manager = "request.options.?fieldManager.orValue('')"
    return (
        f"oldObject.{applied}.contains('{FRACTION}') &&\n"
        f"  oldObject.{applied} !=\n  object.{applied} ||\n"
        f"oldObject.metadata.?managedFields.orValue([]).exists(m, m.?manager.orValue('') == {manager} &&\n"
        f"  {_set_fraction('m', spec)} && (m.?operation.orValue('') != 'Apply' ?\n"
        f"  {manager}.startsWith('{HELM}') :\n"
        f"  !object.metadata.?managedFields.orValue([]).exists(n, n.?manager.orValue('') == {manager} &&\n"
        f"    n.?operation.orValue('') == 'Apply' && {_set_fraction('n', spec)})))"
    )


def _set_fraction(entry: str, spec: Path) -> str:
    """Returns the condition that an entry of managedFields has a container's fraction."""
    fields = f"{entry}.?fieldsV1" + "".join(f"[?'f:{key}']" for key in spec)
    limit = f"l.value()[k][?'f:resources'][?'f:limits'][?'f:{FRACTION}']"
    return (
        f"[{fields}[?'f:containers'],\n    {fields}[?'f:initContainers']].exists(l, "
        f"l.orValue({{}}).exists(k,\n    {limit}.hasValue()))"
    )


def _templates(name: str, resources: tuple[tuple[str, str], ...], spec: Path) -> Entry:
    return Entry(
        name,
        TEMPLATES_PATH,
        resources,
        ("CREATE", "UPDATE"),
        spec,
        {"contains-or-withdraws-fraction": _template_condition(spec)},
    )


ENTRIES: Final = (
    Entry(
        "pods.remotegpu.io",
        PODS_PATH,
        (("", "pods"),),
        ("CREATE", "UPDATE"),
        ("spec",),
        {"is-not-a-mirror-pod": NOT_A_MIRROR_POD, "has-a-name-of-remotegpu": _pod_condition()},
    ),
    _templates(
        "templates.remotegpu.io",
        (
            ("", "replicationcontrollers"),
            ("apps", "daemonsets"),
            ("apps", "deployments"),
            ("apps", "replicasets"),
            ("apps", "statefulsets"),
            ("batch", "jobs"),
        ),
        ("spec", "template", "spec"),
    ),
    _templates("cronjobs.remotegpu.io", (("batch", "cronjobs"),), ("spec", "jobTemplate", "spec", "template", "spec")),
    _templates("podtemplates.remotegpu.io", (("", "podtemplates"),), ("template", "spec")),
)

SPECS: Final = {kind: entry.spec for entry in ENTRIES for kind in entry.resources}
