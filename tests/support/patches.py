"""Applies JSON Patches like an API server."""

from __future__ import annotations

import copy
from typing import Any


def applied(document: Any, patch: list[dict[str, Any]]) -> Any:
    """Returns the patched document. It supports the part of RFC 6902 that the project uses."""
    document = copy.deepcopy(document)
    for operation in patch:
        keys = [key.replace("~1", "/").replace("~0", "~") for key in operation["path"].split("/")[1:]]
        if not keys:
            document = operation["value"]
            continue
        parent = document
        for key in keys[:-1]:
            parent = parent[int(key)] if isinstance(parent, list) else parent[key]
        last = keys[-1]
        if isinstance(parent, list):
            assert (operation["op"], last) == ("add", "-") or operation["op"] == "replace"
            if last == "-":
                parent.append(operation["value"])
            else:
                parent[int(last)] = operation["value"]
        elif operation["op"] == "remove":
            del parent[last]
        else:
            assert (operation["op"] == "replace") == (last in parent)
            parent[last] = operation["value"]
    return document
