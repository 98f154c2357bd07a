"""Generates objects that a CRD's schema allows, for property-based tests.

It also generates objects that only the CEL rules of the CRD refuse, since an older version may have accepted them.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from support.crds import schema

Json = Any
# Any text, and difficult ones: terminal commands, texts that look like a quantity or a time, and others.
TEXTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["\x1b]0;owned\x07", "\u202e\r\n", "0.25", "1", "-1", "NaN", "1e999", "10Gi", "9" * 40, "2026-01-01T00:00:00Z"]
    ),
)


def values(of: dict[str, Any]) -> st.SearchStrategy[Json]:
    """Returns a strategy for the values that a part of a schema allows."""
    if "enum" in of:
        return st.sampled_from(of["enum"])
    if of.get("x-kubernetes-int-or-string"):
        return st.integers(0, 1 << 40) | TEXTS
    match of.get("type"):
        case "object":
            return _objects(of)
        case "array":
            items = values(of["items"])
            return st.lists(items, min_size=of.get("minItems", 0), max_size=min(of.get("maxItems", 3), 3))
        case "integer":
            return st.integers(of.get("minimum", -(1 << 63)), of.get("maximum", (1 << 63) - 1))
        case "boolean":
            return st.booleans()
        case "string":
            return _strings(of)
        case _:
            return st.none() | st.booleans() | TEXTS


def _objects(of: dict[str, Any]) -> st.SearchStrategy[Json]:
    known = {name: values(each) for name, each in of.get("properties", {}).items()}
    required = {name: known.pop(name) for name in of.get("required", ()) if name in known}
    # A stored object always has the fields with a default.
    defaults = {name: known.pop(name) for name in list(known) if "default" in of["properties"][name]}
    if not known and not required and not defaults:
        more = of.get("additionalProperties")
        return st.dictionaries(TEXTS, values(more) if isinstance(more, dict) else TEXTS, max_size=2)
    return st.fixed_dictionaries(required | defaults, optional=known)


def _strings(of: dict[str, Any]) -> st.SearchStrategy[str]:
    if "pattern" in of:
        return st.from_regex(of["pattern"], fullmatch=True)
    least, most = of.get("minLength", 0), of.get("maxLength", 1 << 30)
    return TEXTS.filter(lambda text: least <= len(text) <= most)


def objects(kind: str, *, namespaced: bool) -> st.SearchStrategy[dict[str, Any]]:
    """Returns a strategy for whole objects, with names that the API server accepts."""
    names = st.from_regex(r"[a-z]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True)
    metadata = {
        "name": names,
        "uid": st.uuids().map(str),
        "resourceVersion": st.integers(1, 1 << 40).map(str),
        "generation": st.integers(1, 1 << 30),
        "creationTimestamp": st.just("2026-01-01T00:00:00Z"),
    }
    if namespaced:
        metadata["namespace"] = st.sampled_from(["one", "other"])
    properties = schema(kind)["properties"]
    parts = {name: values(properties[name]) for name in ("spec", "status")}
    return st.fixed_dictionaries(
        {"metadata": st.fixed_dictionaries(metadata), "spec": parts["spec"]}, optional={"status": parts["status"]}
    )
