"""Computes the JSON Patch (RFC 6902) that turns one JSON document into another."""

from collections.abc import Iterator
from typing import Any

Operation = dict[str, Any]


def difference(old: Any, new: Any, path: str = "") -> Iterator[Operation]:
    """Yields the operations that turn `old` into `new`; none for equal parts. `path` is the JSON Pointer of `old`."""
    if old is new or old == new:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old.keys() - new.keys():
            yield {"op": "remove", "path": f"{path}/{_escape(key)}"}
        for key, value in new.items():
            if key in old:
                yield from difference(old[key], value, f"{path}/{_escape(key)}")
            else:
                yield {"op": "add", "path": f"{path}/{_escape(key)}", "value": value}
    elif isinstance(old, list) and isinstance(new, list) and len(old) <= len(new):
        for index, element in enumerate(old):
            yield from difference(element, new[index], f"{path}/{index}")
        for element in new[len(old) :]:
            yield {"op": "add", "path": f"{path}/-", "value": element}
    else:
        yield {"op": "replace", "path": path, "value": new}


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
