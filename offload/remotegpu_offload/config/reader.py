"""Converts the nodes of a file to the model, by the model's types. Collects every problem with its line and place.

`schema.json` is the same schema for editors. It is not read here; a test compares the two with mutated files.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from remotegpu_offload.config.errors import Problem
from remotegpu_offload.config.formats import FORMATS
from remotegpu_offload.config.model import ClassRule, Config, FunctionRule, ModuleRule, Rule, SessionRules, TorchRule
from remotegpu_offload.config.nodes import List, Map, Node, Scalar
from remotegpu_offload.config.suggest import suggestion

# Keys whose model field has another name, because there the value has a unit.
IN_MODEL: Final = {
    "fraction": "milli",
    "memory": "memory_bytes",
    "on_disconnect": "resume_seconds",
    "snapshots": "snapshot_seconds",
    "cache": "cache_bytes",
    "pass": "passes",
    "function": "pattern",
    "class": "pattern",
    "offload": "rules",
}
RULES: Final[dict[str, Any]] = {
    "torch": TorchRule,
    "function": FunctionRule,
    "class": ClassRule,
    "module": ModuleRule,
}
# The format of a text, by the model's field. Fields that are missing here accept any text.
_FORMATS: Final = {
    "milli": "fraction",
    "memory_bytes": "memory",
    "resume_seconds": "disconnect",
    "snapshot_seconds": "period",
    "cache_bytes": "memory",
    "page": "code",
    "never": "code",
    "read": "path",
    "write": "path",
    "passes": "variable",
    "pattern": "callable",
    "module": "module",
}
_UNIQUE: Final = ("backends", "devices")
_NOT_EMPTY: Final = ("devices",)
_NOT_IN_FILE: Final = ("line", "source", "folder")


@cache
def keys(model: type, kind: str = "") -> dict[str, Any]:
    """Returns the keys of a mapping in the file, with their types. `kind` is the first key of a rule."""
    in_file = {IN_MODEL[key]: key for key in IN_MODEL if key not in RULES} | {"pattern": kind}
    hints = get_type_hints(model)
    names = [field.name for field in fields(model) if field.name not in _NOT_IN_FILE]
    return {in_file.get(name, name): hints[name] for name in names}


class Reader:
    """Reads the nodes. It traverses the model and not the file, so that a hostile file cannot make it slow."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._lines: dict[str, int] = {}  # of values, by their place

    def config(self, root: Node) -> dict[str, Any]:
        """Returns the arguments of a Config, except its paths. Unusable if there are problems."""
        found = self._mapping(root, "", {"version": Literal[1], **keys(Config)})
        if not isinstance(root, List) and "version" not in found:
            self._fail(root, "", "lacks `version`: add it, as in docs/offload.md")
        found.pop("version", None)
        session: SessionRules = found.get("session", SessionRules())
        if not self.problems and session.milli is not None and session.memory_bytes is not None:
            text = "says fraction and memory: a share is one of them"
            self.problems.append(Problem(self._lines["session.memory"], "session", text))
        if not self.problems and session.resume_seconds is not None and session.snapshot_seconds is None:
            text = "resumes from nothing: add `snapshots: 30s`, or another time, to session"
            self.problems.append(Problem(self._lines["session.on_disconnect"], "session.on_disconnect", text))
        return _in_model(found)

    def _fail(self, node: Node, where: str, message: str) -> None:
        self.problems.append(Problem(node.line, where, message))

    def _read(self, node: Node, where: str, name: str, kind: Any) -> Any:
        """Returns the value for the model's field `name` of this type; None after a problem."""
        if kind == Rule:
            return self._rule(node, where)
        if is_dataclass(kind):
            model: Any = kind
            return model(**_in_model(self._mapping(node, where, keys(model))))
        if get_origin(kind) is Mapping:
            return self._mapping(node, where, {}, get_args(kind)[1])
        # `mutates` is either a list or a word.
        for each in (kind, *get_args(kind)):
            if get_origin(each) is tuple and (each is kind or isinstance(node, List)):
                return self._list(node, where, name, get_args(each)[0])
        for each in (kind, *get_args(kind)):
            if get_origin(each) is Literal:
                return self._choice(node, where, get_args(each))
        return self._text(node, where, name)

    def _mapping(self, node: Node, where: str, known: Mapping[str, Any], others: Any = None) -> dict[str, Any]:
        if isinstance(node, Scalar) and node.text is None:
            node = Map(node.line)
        if not isinstance(node, Map):
            self._fail(node, where, f"is not a mapping but {_kind(node)}")
            return {}
        found: dict[str, Any] = {}
        for key, value in node.entries:
            name = (key.text or "") if isinstance(key, Scalar) else "?"
            place = f"{where}.{name}" if where else name
            if name in found:
                self._fail(key, place, "stands here a second time: only one of them can hold")
            elif name not in known and others is None:
                self._fail(key, place, f"is no key of this file; {suggestion(name, known)}")
            else:
                self._lines[place] = value.line
                found[name] = self._read(value, place, IN_MODEL.get(name, name), known.get(name, others))
        return found

    def _rule(self, node: Node, where: str) -> Any:
        if not isinstance(node, Map):
            self._fail(node, where, f"a rule is a mapping that begins with one of {', '.join(sorted(RULES))}")
            return None
        names = [key.text or "" for key, _ in node.entries if isinstance(key, Scalar)]
        kinds = [name for name in names if name in RULES]
        if len(kinds) != 1:
            first = names[0] if names else ""
            text = f"{first!r} begins no rule; {suggestion(first, RULES)}"
            self._fail(node, where, f"one rule says {' and '.join(kinds)}: make two rules of them" if kinds else text)
            return None
        model = RULES[kinds[0]]
        if model is TorchRule:
            return replace(self._mapping(node, where, {"torch": TorchRule})["torch"], line=node.line)
        return model(**_in_model(self._mapping(node, where, keys(model, kinds[0]))), line=node.line)

    def _list(self, node: Node, where: str, name: str, kind: Any) -> tuple[Any, ...]:
        if not isinstance(node, List):
            self._fail(node, where, f"is not a list but {_kind(node)}: write it in brackets")
            return ()
        if name in _NOT_EMPTY and not node.items:
            self._fail(node, where, "is an empty list: name at least one, or leave the key out")
        found: list[Any] = []
        for index, item in enumerate(node.items):
            value = self._read(item, f"{where}[{index}]", name, kind)
            if name in _UNIQUE and value is not None and value in found:
                self._fail(item, f"{where}[{index}]", f"{value!r} stands here a second time")
            found.append(value)
        return tuple(found)

    def _choice(self, node: Node, where: str, allowed: tuple[Any, ...]) -> Any:
        by_text = {str(value): value for value in allowed}
        if isinstance(node, Scalar) and node.text in by_text:
            return by_text[node.text]
        if isinstance(node, Scalar):
            near = suggestion(node.text or "", by_text, "possible are")
            self._fail(node, where, f"{_kind(node)} is not possible; {near}")
        else:
            self._fail(node, where, f"is {_kind(node)}; possible are {', '.join(by_text)}")
        return None

    def _text(self, node: Node, where: str, name: str) -> Any:
        if not isinstance(node, Scalar) or node.text is None:
            wanted = "a number" if name == "milli" else "text"
            self._fail(node, where, f"is not {wanted} but {_kind(node)}")
            return None
        try:
            return FORMATS[_FORMATS[name]](node.text) if name in _FORMATS else node.text
        except ValueError as error:
            self._fail(node, where, str(error))
            return None


def _in_model(found: Mapping[str, Any]) -> dict[str, Any]:
    return {IN_MODEL.get(key, key): value for key, value in found.items()}


def _kind(node: Node) -> str:
    if isinstance(node, Map):
        return "a mapping"
    if isinstance(node, List):
        return "a list"
    return "empty" if node.text is None else repr(node.text)
