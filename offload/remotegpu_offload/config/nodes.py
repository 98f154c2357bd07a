"""The content of a file before the schema is applied: texts, lists and mappings with their lines."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, TypeAlias


class YamlError(ValueError):
    """The text is not valid YAML; `line` counts from 1."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


@dataclass(slots=True, eq=False)
class Scalar:
    text: str | None  # None: an empty value, or null
    line: int


@dataclass(slots=True, eq=False)
class List:
    line: int
    items: list[Node] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Map:
    line: int
    entries: list[tuple[Node, Node]] = field(default_factory=list)


Node: TypeAlias = Scalar | List | Map


def from_json(text: str | bytes) -> Node:
    """Parses JSON. Lines are unknown, so each node has line 1. Raises ValueError."""
    return _of_value(json.loads(text))


def from_yaml(text: str | bytes) -> Node | None:
    """Parses YAML; None for an empty text. Raises YamlError, or ImportError without PyYAML."""
    import yaml  # noqa: PLC0415

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        reason = getattr(error, "problem", None) or "not text in UTF-8, or nested too deep"
        raise YamlError(reason, mark.line + 1 if mark else 1) from None
    # By identity: with anchors, YAML documents are graphs and may have cycles.
    made: dict[int, Node] = {}

    def convert(node: Any) -> Node:
        if id(node) in made:
            return made[id(node)]
        line = node.start_mark.line + 1
        if isinstance(node, yaml.SequenceNode):
            items = made[id(node)] = List(line)
            items.items += [convert(item) for item in node.value]
            return items
        if isinstance(node, yaml.MappingNode):
            entries = made[id(node)] = Map(line)
            entries.entries += [(convert(key), convert(value)) for key, value in node.value]
            return entries
        return Scalar(None if node.tag == "tag:yaml.org,2002:null" else node.value, line)

    return None if root is None else convert(root)


def _of_value(value: object) -> Node:
    if isinstance(value, dict):
        return Map(1, [(Scalar(key, 1), _of_value(inner)) for key, inner in value.items()])
    if isinstance(value, list):
        return List(1, [_of_value(item) for item in value])
    return Scalar(None if value is None else value if isinstance(value, str) else json.dumps(value), 1)
