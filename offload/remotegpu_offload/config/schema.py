"""Checking YAML against `schema.json`, with line numbers; the small part of JSON Schema that the file uses.

The user's interpreter need not have a validator, and those that exist know neither lines nor nearest names.
"""

import json
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Final, TypeAlias

from remotegpu_offload.config.errors import Problem
from remotegpu_offload.config.formats import FORMATS
from remotegpu_offload.config.nodes import List, Map, Node, Scalar
from remotegpu_offload.config.suggest import suggestion

Schema: TypeAlias = dict[str, Any]
_KINDS: Final = {"object": "a mapping", "array": "a list", "string": "text", "number": "a number"}


@cache
def schema() -> Schema:
    """The whole schema, as in the package."""
    return json.loads(files(__package__).joinpath("schema.json").read_text())  # type: ignore[no-any-return]


@dataclass(slots=True)
class Checker:
    """Walks the schema, not the file, so that a hostile file cannot make it long; gathers every problem."""

    problems: list[Problem] = field(default_factory=list)
    lines: dict[str, int] = field(default_factory=dict)  # of every value by its place

    def check(self, node: Node, rule: Schema, where: str = "") -> Any:
        """The value of the node, its scalars as `FORMATS` make them; None where there is a problem."""
        rule = _resolved(rule)
        self.lines[where] = node.line
        if "oneOf" in rule:
            return self._one_of(node, rule["oneOf"], where)
        if "anyOf" in rule:
            of_lists, of_words = (
                next(option for option in rule["anyOf"] if ("enum" in option) == words) for words in (False, True)
            )
            return self.check(node, of_lists if isinstance(node, List) else of_words, where)
        if "enum" in rule:
            return self._enum(node, rule["enum"], where)
        match rule["type"]:
            case "object":
                return self._object(node, rule, where)
            case "array":
                return self._array(node, rule, where)
            case _:
                return self._scalar(node, rule, where)

    def _say(self, node: Node, where: str, message: str) -> None:
        self.problems.append(Problem(node.line, where, message))

    def _one_of(self, node: Node, options: list[Schema], where: str) -> Any:
        kinds = {option["required"][0]: option for option in options}
        if not isinstance(node, Map):
            return self._say(node, where, f"a rule is a mapping that begins with one of {', '.join(sorted(kinds))}")
        keys = [key.text or "" for key, _ in node.entries if isinstance(key, Scalar)]
        found = [key for key in keys if key in kinds]
        if len(found) != 1:
            if found:
                return self._say(node, where, f"one rule says {' and '.join(found)}: make two rules of them")
            first = keys[0] if keys else ""
            return self._say(node, where, f"{first!r} begins no rule; {suggestion(first, kinds)}")
        return self._object(node, kinds[found[0]], where)

    def _object(self, node: Node, rule: Schema, where: str) -> dict[str, Any] | None:
        if isinstance(node, Scalar) and node.text is None:
            node = Map(node.line)
        if not isinstance(node, Map):
            self._say(node, where, f"is not a mapping but {_kind(node)}")
            return None
        known: dict[str, Schema] = rule.get("properties", {})
        others = rule["additionalProperties"]
        found: dict[str, Any] = {}
        for key, value in node.entries:
            name = (key.text or "") if isinstance(key, Scalar) else "?"
            place = f"{where}.{name}" if where else name
            if name in found:
                self._say(key, place, "stands here a second time: only one of them can hold")
            elif name in known:
                found[name] = self.check(value, known[name], place)
            elif others is False:
                self._say(key, place, f"is no key of this file; {suggestion(name, known)}")
            else:
                found[name] = self.check(value, others, place)
        for name in rule.get("required", ()):
            if name not in found:
                self._say(node, where, f"lacks `{name}`: add it, as in docs/offload.md")
        return found

    def _array(self, node: Node, rule: Schema, where: str) -> tuple[Any, ...] | None:
        if not isinstance(node, List):
            self._say(node, where, f"is not a list but {_kind(node)}: write it in brackets")
            return None
        if len(node.items) < rule.get("minItems", 0):
            self._say(node, where, "is an empty list: name at least one, or leave the key out")
        found: list[Any] = []
        for index, item in enumerate(node.items):
            value = self.check(item, rule["items"], f"{where}[{index}]")
            if rule.get("uniqueItems") and value is not None and value in found:
                self._say(item, f"{where}[{index}]", f"{value!r} stands here a second time")
            found.append(value)
        return tuple(found)

    def _enum(self, node: Node, allowed: list[Any], where: str) -> Any:
        if not isinstance(node, Scalar):
            return self._say(node, where, f"is {_kind(node)}; possible are {', '.join(map(str, allowed))}")
        by_text = {str(value): value for value in allowed}
        if node.text not in by_text:
            return self._say(
                node, where, f"{_kind(node)} is not possible; {suggestion(node.text or '', by_text, 'possible are')}"
            )
        return by_text[node.text]

    def _scalar(self, node: Node, rule: Schema, where: str) -> Any:
        if not isinstance(node, Scalar) or node.text is None:
            return self._say(node, where, f"is not {_KINDS[rule['type']]} but {_kind(node)}")
        if "format" not in rule:
            return node.text
        try:
            return FORMATS[rule["format"]](node.text)
        except ValueError as error:
            return self._say(node, where, str(error))


def _resolved(rule: Schema) -> Schema:
    if "$ref" in rule:
        return schema()["$defs"][rule["$ref"].rpartition("/")[2]]  # type: ignore[no-any-return]
    return rule


def _kind(node: Node) -> str:
    if isinstance(node, Map):
        return "a mapping"
    if isinstance(node, List):
        return "a list"
    return "empty" if node.text is None else repr(node.text)
