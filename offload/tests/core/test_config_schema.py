"""The schema, the model and the words of the documentation say the same."""

from __future__ import annotations

import re
import typing
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from remotegpu_offload.config import (
    ClassRule,
    CodeRules,
    Config,
    EnvRules,
    FileRules,
    FunctionRule,
    ModuleRule,
    SessionRules,
    TorchRule,
    parse,
)
from remotegpu_offload.config.formats import FORMATS
from remotegpu_offload.config.load import IN_MODEL
from remotegpu_offload.config.schema import schema

ROOT = Path(__file__).parents[3]
KINDS = {"torch": TorchRule, "function": FunctionRule, "class": ClassRule, "module": ModuleRule}
SECTIONS = {"session": SessionRules, "code": CodeRules, "files": FileRules, "env": EnvRules}


def resolved(rule: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in rule:
        return rule
    found: dict[str, Any] = schema()["$defs"][rule["$ref"].rpartition("/")[2]]
    return found


def in_model(value: Any, rule: dict[str, Any]) -> Any:
    if isinstance(value, list):
        return tuple(value)
    return FORMATS[rule["format"]](value) if "format" in rule else value


def rules() -> dict[str, dict[str, Any]]:
    return {option["required"][0]: option for option in schema()["properties"]["offload"]["items"]["oneOf"]}


def test_every_section_has_the_fields_of_its_class_and_their_defaults() -> None:
    for section, model in SECTIONS.items():
        properties = schema()["properties"][section]["properties"]
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
    assert tuple(schema()["properties"]["session"]["properties"]["backends"]["items"]["enum"]) == backend
    for model, name, rule in [
        (SessionRules, "skew", schema()["properties"]["session"]["properties"]["skew"]),
        (CodeRules, "prefer", schema()["properties"]["code"]["properties"]["prefer"]),
        (Config, "trust", schema()["properties"]["trust"]),
        (FunctionRule, "returns", schema()["$defs"]["returns"]),
    ]:
        assert typing.get_args(typing.get_type_hints(model)[name]) == tuple(rule["enum"])


def test_the_file_is_a_json_schema_and_judges_as_we_do() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    validator = jsonschema.Draft202012Validator(schema())
    for text, good in [
        ("version: 1", True),
        ("version: 1\noffload: [{torch: {devices: [cuda]}}, {function: a.b, mutates: [x]}]", True),
        ("version: 1\nnix: 1", False),
        ("version: 1\noffload: [{function: a.b, class: c.d}]", False),
        ("version: 1\noffload: [{function: a.b, mutates: all}]", False),
        ("version: 1\nsession: {backends: [cpu, cpu]}", False),
        ("session: {}", False),
    ]:
        assert validator.is_valid(yaml.safe_load(text)) is good
        if good:
            parse(text)
        else:
            with pytest.raises(ValueError, match="remotegpu"):
                parse(text)


def test_every_default_of_the_model_is_immutable_or_made_anew() -> None:
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


def test_there_are_examples() -> None:
    assert {"examples/10-offload/remotegpu.yaml", "docs/offload.md#0"} <= {name for name, _ in documented()}
