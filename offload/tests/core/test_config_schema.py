"""The schema, the model and the words of the documentation say the same."""

from __future__ import annotations

import json
import re
import typing
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import event, given, settings
from hypothesis import strategies as st

from remotegpu_offload.config import (
    ClassRule,
    CodeRules,
    Config,
    ConfigError,
    EnvRules,
    FileRules,
    FunctionRule,
    ModuleRule,
    SessionRules,
    TorchRule,
    dump,
    parse,
)
from remotegpu_offload.config.formats import FORMATS
from remotegpu_offload.config.reader import IN_MODEL

ROOT = Path(__file__).parents[3]
SCHEMA = json.loads((ROOT / "offload" / "remotegpu_offload" / "config" / "schema.json").read_text())
KINDS = {"torch": TorchRule, "function": FunctionRule, "class": ClassRule, "module": ModuleRule}
SECTIONS = {"session": SessionRules, "code": CodeRules, "files": FileRules, "env": EnvRules}


def resolved(rule: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in rule:
        return rule
    found: dict[str, Any] = SCHEMA["$defs"][rule["$ref"].rpartition("/")[2]]
    return found


def in_model(value: Any, rule: dict[str, Any]) -> Any:
    if isinstance(value, list):
        return tuple(value)
    return FORMATS[rule["format"]](value) if "format" in rule else value


def rules() -> dict[str, dict[str, Any]]:
    return {option["required"][0]: option for option in SCHEMA["properties"]["offload"]["items"]["oneOf"]}


def test_every_section_has_the_fields_of_its_class_and_their_defaults() -> None:
    for section, model in SECTIONS.items():
        properties = SCHEMA["properties"][section]["properties"]
        by_name = {field.name: field for field in fields(model)}
        assert {IN_MODEL.get(key, key) for key in properties} == set(by_name)
        for key, rule in properties.items():
            if "default" in rule:
                assert by_name[IN_MODEL.get(key, key)].default == in_model(rule["default"], rule), key
            else:
                assert by_name[IN_MODEL.get(key, key)].default in {None, ()}, key


def test_every_rule_has_the_fields_of_its_class_and_their_defaults() -> None:
    assert set(rules()) == set(KINDS)
    for key, model in KINDS.items():
        properties = rules()[key]["properties"]
        if key == "torch":
            properties = properties["torch"]["properties"]
        by_name = {field.name: field for field in fields(model) if field.name != "line"}
        assert {"pattern" if name in {"function", "class"} else name for name in properties} == set(by_name)
        for name, rule in ((name, resolved(rule)) for name, rule in properties.items()):
            if "default" in rule:
                assert by_name[name].default == in_model(rule["default"], rule), name


def test_choices_are_those_of_the_types() -> None:
    hints = typing.get_type_hints(SessionRules)
    backend = typing.get_args(typing.get_args(hints["backends"])[0])
    assert tuple(SCHEMA["properties"]["session"]["properties"]["backends"]["items"]["enum"]) == backend
    for model, name, rule in [
        (SessionRules, "skew", SCHEMA["properties"]["session"]["properties"]["skew"]),
        (CodeRules, "prefer", SCHEMA["properties"]["code"]["properties"]["prefer"]),
        (Config, "trust", SCHEMA["properties"]["trust"]),
        (FunctionRule, "returns", SCHEMA["$defs"]["returns"]),
    ]:
        assert typing.get_args(typing.get_type_hints(model)[name]) == tuple(rule["enum"])


FORMAT_CHECKER = jsonschema.FormatChecker(formats=())
for _name, _format in FORMATS.items():
    FORMAT_CHECKER.checks(_name, raises=ValueError)(lambda value, _format=_format: _format(str(value)) is not Ellipsis)
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA, format_checker=FORMAT_CHECKER)
VALID = {
    "version": 1,
    "session": {
        "backends": ["rocm", "cpu"],
        "environment": "torch215",
        "fraction": "0.25",
        "on_disconnect": "resume 1m30s",
        "snapshots": "30s",
        "skew": "allow",
    },
    "offload": [
        {"torch": {"devices": ["cuda", "mps"]}},
        {"function": "a.b", "args": {"model": "ref", "*": "value"}, "mutates": ["batch"], "returns": "ref"},
        {"class": "a.C", "mutates": "auto"},
        {"module": "onnxruntime", "profile": "mine"},
    ],
    "code": {"page": ["mypkg", "./src"], "never": ["mypkg.secrets"], "prefer": "client"},
    "files": {"read": ["./data/**"], "write": [], "cache": "2GiB"},
    "env": {"pass": ["OMP_NUM_THREADS", "MYAPP_*"]},
    "trust": "full",
}
WORDS = ["", "a", "cpu", "a.b", "0.5", "4GiB", "30s", "fail", "never", "auto", "value", "*", "./x", "client", "A-B"]
KEYS = ["torch", "function", "class", "module", "memory", "fraction", "version", "devices", "args", "mutates", "x", "*"]


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every key and index of a document, with what has it."""
    inside = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    return [(value, key) for key, _ in inside] + [place for _, held in inside for place in places(held)]


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """A valid file, changed in up to three places. Scalars are texts: YAML's types mean nothing to the reader."""
    made: dict[str, Any] = json.loads(json.dumps(VALID))
    for _ in range(draw(st.integers(0, 3))):
        holder, key = draw(st.sampled_from(places(made)))
        value: Any = draw(
            st.sampled_from([None, [], {}, [[]], *WORDS]) | st.dictionaries(st.sampled_from(KEYS), st.just("a"))
        )
        match draw(st.sampled_from(["replace", "remove", "wrap", "repeat", "add"])):
            case "replace":
                holder[key] = value
            case "remove":
                del holder[key]
            case "wrap":
                holder[key] = [holder[key]]
            case "repeat" if isinstance(holder, list):
                holder.append(json.loads(json.dumps(holder[key])))
            case _ if isinstance(holder, dict):
                holder[draw(st.sampled_from(KEYS))] = value
        if not made:
            break
    return made


def is_read(document: Any) -> bool:
    try:
        parse(json.dumps(document))
    except ConfigError:
        return False
    return True


def test_the_file_is_a_json_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@settings(max_examples=400, deadline=None)
@given(documents())
def test_the_schema_accepts_and_refuses_what_the_reader_does(document: dict[str, Any]) -> None:
    good = is_read(document)
    event("valid" if good else "refused")
    assert good is VALIDATOR.is_valid(document), list(VALIDATOR.iter_errors(document))


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("version: 1", True),
        ("version: 1\nsession: {fraction: 0.5}\ncode:\noffload: [{torch: }]", True),
        ("version: 1\nsession: {fraction: 0.5, memory: 4GiB}", False),
        ("version: 1\nsession: {on_disconnect: resume 1s}", False),
        ("version: 1\nsession: {on_disconnect: resume 1s, snapshots: never}", False),
        ("version: 1\nsession: {on_disconnect: fail}", True),
        ("version: 1\nsession: {backends: [cpu, cpu]}", False),
        ("version: 1\noffload: [{function: a.b, class: c.d}]", False),
        ("version: 1\noffload: [{torch: {devices: []}}]", False),
        ("session: {}", False),
        (dump(Config()), True),
    ],
)
def test_a_file_is_valid_for_both_or_for_neither(text: str, good: bool) -> None:
    document = yaml.safe_load(text)
    assert (is_read(document), VALIDATOR.is_valid(document)) == (good, good)


def test_every_default_of_the_model_is_immutable_or_made_for_each_instance() -> None:
    for model in (*SECTIONS.values(), *KINDS.values(), Config):
        for field in fields(model):
            assert field.default is MISSING or not isinstance(field.default, list | dict | set)


def documented() -> list[tuple[str, str]]:
    """Every whole configuration of the repository's documents, and every file of its examples."""
    blocks = [
        (f"{page.relative_to(ROOT)}#{number}", block)
        for page in [
            ROOT / "README.md",
            *sorted((ROOT / "docs").glob("*.md")),
            *sorted((ROOT / "examples").rglob("*.md")),
        ]
        for number, block in enumerate(re.findall(r"```yaml\n(.*?)```", page.read_text(), re.S))
        if block.startswith("version: 1")
    ]
    examples = [*(ROOT / "examples").rglob("remotegpu.yaml"), *(ROOT / "examples" / "10-offload").glob("*.yaml")]
    # Where it is for Kubernetes, remotegpu.yaml is a value in a ConfigMap, which that example's own test reads.
    files = [
        (str(path.relative_to(ROOT)), path.read_text())
        for path in dict.fromkeys(examples)
        if path.read_text().startswith("version: 1")
    ]
    return blocks + files


@pytest.mark.parametrize(("name", "text"), [pytest.param(*case, id=case[0]) for case in documented()])
def test_every_example_is_a_configuration(name: str, text: str) -> None:
    assert parse(text).source is None, name


def test_documented_examples_are_found() -> None:
    assert {"examples/10-offload/remotegpu.yaml", "docs/offload.md#0"} <= {name for name, _ in documented()}
