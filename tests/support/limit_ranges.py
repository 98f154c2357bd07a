"""Requests of a pod and a template, and what must remain of them under defaults of a LimitRange or of another webhook.

One table for `test_defaults.py`, with a small API server of the test's own, and with real ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from remotegpu.api.kubernetes import FRACTION, MILLI

Object = dict[str, Any]

# An administrator's settings; the API server completes them as `complete` does.
LIMIT_RANGES: dict[str, Object] = {
    "default of fraction": {"default": {FRACTION: "0.1"}, "defaultRequest": {FRACTION: "0.1"}},
    "default of milli": {"default": {MILLI: "100"}, "defaultRequest": {MILLI: "100"}},
    "default of milli without a request": {"default": {MILLI: "100"}},
    "default of both": {"default": {FRACTION: "0.1", MILLI: "300"}, "defaultRequest": {FRACTION: "0.1", MILLI: "300"}},
    "max of milli": {"max": {MILLI: "600"}},
    "min of milli": {"min": {MILLI: "100"}, "default": {MILLI: "100"}},
}
DEFAULTS = {
    "default of fraction": 100,
    "default of milli": 100,
    "default of milli without a request": 100,
    "default of both": 100,
    "max of milli": 600,
    "min of milli": 100,
}
# Bounds in fractions, and what Kubernetes says of a container without one: it sees thousandths alone.
_NO_LIMIT = f"maximum {FRACTION} usage per Container is 600m.  No limit is specified"
_NO_REQUEST = f"minimum {FRACTION} usage per Container is 100m.  No request is specified"
BOUNDS_OF_FRACTIONS: dict[str, tuple[Object, str]] = {
    "max of fraction": ({"max": {FRACTION: "0.6"}}, _NO_LIMIT),
    "min of fraction": ({"min": {FRACTION: "0.1"}}, _NO_REQUEST),
    "both of fraction": (
        {"min": {FRACTION: "0.1"}, "max": {FRACTION: "0.6"}},
        f"[{_NO_REQUEST}, {_NO_LIMIT}]",
    ),
}


@dataclass(frozen=True)
class Row:
    """Containers by name: the limits that the author writes, and the expected thousandths. None: the default."""

    containers: dict[str, Object]
    has: dict[str, int | None]
    init: dict[str, Object] = field(default_factory=dict)
    sidecars: tuple[str, ...] = ()

    def spec(self) -> Object:
        def one(name: str, limits: Object) -> Object:
            made: Object = {"name": name, "image": "none"}
            if limits:
                made["resources"] = {"limits": limits}
            return made

        init = [one(name, limits) for name, limits in self.init.items()]
        for each in init:
            if each["name"] in self.sidecars:
                each["restartPolicy"] = "Always"
        made = {"containers": [one(name, limits) for name, limits in self.containers.items()]}
        return {**made, **({"initContainers": init} if init else {})}

    def expected(self, limit_range: str) -> dict[str, int]:
        """`max` gives the same to all containers without limits, which may be more than a pod can have."""
        return {name: DEFAULTS[limit_range] if milli is None else milli for name, milli in self.has.items()}

    def in_a_template(self) -> dict[str, int]:
        """A LimitRange is for pods: a template has what its author wrote."""
        return {name: milli or 0 for name, milli in self.has.items()}


NOTHING: Object = {}
NONE: Object = {MILLI: "0"}
ROWS = {
    "fraction": Row({"app": {FRACTION: "0.25"}}, {"app": 250}),
    "another fraction": Row({"app": {FRACTION: "0.5"}}, {"app": 500}),
    "fraction that is the default's": Row({"app": {FRACTION: "0.1"}}, {"app": 100}),
    "milli": Row({"app": {MILLI: "500"}}, {"app": 500}),
    "none of it": Row({"app": NONE, "other": {FRACTION: "0.25"}}, {"app": 0, "other": 250}),
    "none of it at all": Row({"app": NONE}, {"app": 0}),
    "nothing": Row({"app": NOTHING}, {"app": None}),
    "beside one that says nothing": Row({"app": {FRACTION: "0.25"}, "proxy": NOTHING}, {"app": 250, "proxy": None}),
    "both ways": Row({"app": {FRACTION: "0.25"}, "other": {MILLI: "350"}}, {"app": 250, "other": 350}),
    "init container": Row({"app": {FRACTION: "0.25"}}, {"app": 250, "prepare": 500}, {"prepare": {FRACTION: "0.5"}}),
    "init container in milli": Row({"app": {MILLI: "250"}}, {"app": 250, "prepare": 500}, {"prepare": {MILLI: "500"}}),
    "init container without": Row({"app": {FRACTION: "0.25"}}, {"app": 250, "prepare": 0}, {"prepare": NONE}),
    "init container that says nothing": Row(
        {"app": {MILLI: "250"}}, {"app": 250, "prepare": None}, {"prepare": NOTHING}
    ),
    "sidecar": Row({"app": {FRACTION: "0.25"}}, {"app": 250, "log": 125}, {"log": {FRACTION: "0.125"}}, ("log",)),
    "sidecar without": Row({"app": {FRACTION: "0.25"}}, {"app": 250, "log": 0}, {"log": NONE}, ("log",)),
}


def complete(limit_range: Object) -> Object:
    """Completes a LimitRange as Kubernetes' documentation says: `max` is a default limit, a default limit is a default
    request, and so is `min`.
    """
    default = {**limit_range.get("max", {}), **limit_range.get("default", {})}
    request = {**limit_range.get("min", {}), **limit_range.get("defaultRequest", {})}
    return {"default": default, "defaultRequest": {**default, **request}}


def filled(spec: Object, completed: Object) -> Object:
    """The pod spec with the defaults of a LimitRange, in containers of both kinds."""
    kinds = [name for name in ("initContainers", "containers") if name in spec]
    return {**spec, **{name: [_filled(each, completed) for each in spec[name]] for name in kinds}}


def _filled(container: Object, completed: Object) -> Object:
    resources = container.get("resources") or {}
    limits = {**completed["default"], **(resources.get("limits") or {})}
    requests = {**completed["defaultRequest"], **(resources.get("requests") or {})}
    return {**container, "resources": {**resources, "limits": limits, "requests": requests}}
