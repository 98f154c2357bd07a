"""A table of requests of pods and templates, with the expected results under the defaults of LimitRanges.

`test_defaults.py` uses the table with a small API server of its own, and with real ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from remotegpu.api.kubernetes import FRACTION, MILLI

Object = dict[str, Any]

# Limits of an administrator's LimitRange. The API server completes them as `complete` does.
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
# Bounds in fractions, and the error of Kubernetes, which sees only thousandths and so no fraction in a container.
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
    """Containers by name: the author's limits, and the expected thousandths (None: the default)."""

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
        """Returns the expected thousandths of each container of a pod in a namespace with this LimitRange."""
        return {name: DEFAULTS[limit_range] if milli is None else milli for name, milli in self.has.items()}

    def in_a_template(self) -> dict[str, int]:
        """Returns the expected thousandths in a pod template, which a LimitRange does not change."""
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
    """Completes a LimitRange as the documentation of Kubernetes says.

    `max` is the default of a limit; a default limit, and `min`, are the default of a request.
    """
    default = {**limit_range.get("max", {}), **limit_range.get("default", {})}
    request = {**limit_range.get("min", {}), **limit_range.get("defaultRequest", {})}
    return {"default": default, "defaultRequest": {**default, **request}}


def filled(spec: Object, completed: Object) -> Object:
    """Returns the pod spec with the defaults of a LimitRange in containers and init containers."""
    kinds = [name for name in ("initContainers", "containers") if name in spec]
    return {**spec, **{name: [_filled(each, completed) for each in spec[name]] for name in kinds}}


def _filled(container: Object, completed: Object) -> Object:
    resources = container.get("resources") or {}
    limits = {**completed["default"], **(resources.get("limits") or {})}
    requests = {**completed["defaultRequest"], **(resources.get("requests") or {})}
    return {**container, "resources": {**resources, "limits": limits, "requests": requests}}
