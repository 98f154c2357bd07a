"""Which requests the API server sends to the webhook: one table, from which the chart's configuration is generated.

The conditions are CEL and run in the API server, so that with the webhook down nothing waits for it but what asks for a
share. They see objects before validation: whatever a path goes through may be missing or null.
"""

from dataclasses import dataclass
from typing import Any, Final

from remotegpu.api.kubernetes import FRACTION, GATE, RESOURCE_PREFIX, STATUS_PREFIX, USER_PREFIX
from remotegpu_operator.webhook.template import HELM, LAST_APPLIED, Path

PODS_PATH: Final = "/mutate-pods"
TEMPLATES_PATH: Final = "/mutate-templates"


@dataclass(frozen=True, slots=True)
class Entry:
    """One webhook of the configuration. The API server names it in its errors, beside a pod that could not be made."""

    name: str
    url_path: str
    # Kinds as (group, plural), all v1.
    resources: tuple[tuple[str, str], ...]
    operations: tuple[str, ...]
    # Where an object of these kinds has its pod spec.
    spec: Path
    condition: str

    def as_webhook(self) -> dict[str, Any]:
        """The entry in a MutatingWebhookConfiguration, without where the webhook is."""
        groups = sorted({group for group, _ in self.resources})
        return {
            "name": self.name,
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
            "matchConditions": [{"name": "concerns-remotegpu", "expression": self.condition}],
            "matchPolicy": "Equivalent",
            # Another webhook, or a LimitRange in it, may add a fraction after us; doing it twice changes nothing.
            "reinvocationPolicy": "IfNeeded",
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "timeoutSeconds": 5,
            "admissionReviewVersions": ["v1"],
        }


def _any_container(spec: Path, test: str) -> str:
    """Whether `test` holds for a container `c` of the pod spec at `spec`."""
    lists = ", ".join(f"{_optional('object', (*spec, name))}" for name in ("containers", "initContainers"))
    return f"[{lists}].exists(l, l.orValue(null) != null && l.orValue([]).exists(c, {test}))"


def _any_resource(test: str) -> str:
    """Whether `test` holds for the name `k` of a resource of container `c`."""
    return f"[c.?resources.?limits, c.?resources.?requests].exists(m, m.orValue({{}}).exists(k, {test}))"


def _any_key(where: Path, test: str) -> str:
    return f"{_optional('object', where)}.orValue({{}}).exists(k, {test})"


def _optional(root: str, path: Path) -> str:
    return root + "".join(f".?{key}" for key in path)


def _pod_condition() -> str:
    names = " || ".join(
        [
            _any_container(("spec",), _any_resource(f"k.startsWith('{RESOURCE_PREFIX}')")),
            _any_key(("metadata", "annotations"), f"k.startsWith('{USER_PREFIX}') || k.startsWith('{STATUS_PREFIX}')"),
            _any_key(("metadata", "labels"), f"k.startsWith('{STATUS_PREFIX}')"),
            f"object.spec.?schedulingGates.orValue([]).exists(g, g.name == '{GATE}')",
        ]
    )
    # A mirror pod only shows what a kubelet already runs from a file.
    return f"!('kubernetes.io/config.mirror' in object.metadata.?annotations.orValue({{}})) && ({names})"


def _template_condition(spec: Path) -> str:
    contains = _any_container(spec, _any_resource(f"k == '{FRACTION}'"))
    return f"{contains} || request.operation == 'UPDATE' && ({_withdraws(spec)})"


def _withdraws(spec: Path) -> str:
    """Whether a fraction may have been taken back: `template.without_withdrawn` then looks closely.

    By client-side apply, by server-side apply, or by Helm, each of whose records only its own updates change: an update
    by anybody else is none of ours, whatever stands in the records.
    """
    applied = f"metadata.?annotations[?'{LAST_APPLIED}'].orValue('')"
    fields = "".join(f"[?'f:{key}']" for key in spec)
    owns = (
        f"[{{0}}.?fieldsV1{fields}[?'f:containers'], {{0}}.?fieldsV1{fields}[?'f:initContainers']].exists(l, "
        f"l.orValue({{{{}}}}).exists(k, l.value()[k][?'f:resources'][?'f:limits'][?'f:{FRACTION}'].hasValue()))"
    )
    manager = "request.options.?fieldManager.orValue('')"
    still = (
        "object.metadata.?managedFields.orValue([]).exists(n, n.?manager.orValue('') == "
        f"{manager} && n.?operation.orValue('') == 'Apply' && {owns.format('n')})"
    )
    return (
        f"oldObject.{applied}.contains('{FRACTION}') && oldObject.{applied} != object.{applied} || "
        f"oldObject.metadata.?managedFields.orValue([]).exists(m, m.?manager.orValue('') == {manager} && "
        f"{owns.format('m')} && (m.?operation.orValue('') == 'Apply' ? !{still} : {manager}.startsWith('{HELM}')))"
    )


def _templates(name: str, resources: tuple[tuple[str, str], ...], spec: Path) -> Entry:
    return Entry(name, TEMPLATES_PATH, resources, ("CREATE", "UPDATE"), spec, _template_condition(spec))


ENTRIES: Final = (
    Entry("pods.remotegpu.io", PODS_PATH, (("", "pods"),), ("CREATE",), ("spec",), _pod_condition()),
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
