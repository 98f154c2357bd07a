"""Writes a configuration as JSON, for a program in another interpreter that may lack PyYAML."""

import json
from dataclasses import fields
from typing import Any, Final

from remotegpu.api.durations import format_duration
from remotegpu.api.quantities import format_milli
from remotegpu_offload.config.model import ClassRule, Config, ModuleRule, Rule, TorchRule
from remotegpu_offload.config.reader import IN_MODEL

_IN_FILE: Final = {model: file for file, model in IN_MODEL.items()}


def dump(config: Config) -> str:
    """Returns JSON that `parse` reads as the same configuration, without line numbers."""
    return json.dumps(
        {
            "version": 1,
            "session": _section(config.session),
            "offload": [_rule(rule) for rule in config.rules],
            "code": _section(config.code),
            "files": _section(config.files),
            "env": _section(config.env),
            "trust": config.trust,
        }
    )


def _section(section: Any) -> dict[str, Any]:
    found = {}
    for field in fields(section):
        value = getattr(section, field.name)
        text: object
        match field.name:
            case "milli":
                text = None if value is None else format_milli(value)
            case "memory_bytes" | "cache_bytes":
                text = None if value is None else str(value)
            case "resume_seconds":
                text = "fail" if value is None else f"resume {format_duration(value)}"
            case "snapshot_seconds":
                text = "never" if value is None else format_duration(value)
            case _:
                text = list(value) if isinstance(value, tuple) else value
        if text is not None:
            found[_IN_FILE.get(field.name, field.name)] = text
    return found


def _rule(rule: Rule) -> dict[str, Any]:
    if isinstance(rule, TorchRule):
        return {"torch": {"devices": list(rule.devices)}}
    if isinstance(rule, ModuleRule):
        return {"module": rule.module, "profile": rule.profile}
    key = "class" if isinstance(rule, ClassRule) else "function"
    mutates = list(rule.mutates) if isinstance(rule.mutates, tuple) else rule.mutates
    return {key: rule.pattern, "args": dict(rule.args), "mutates": mutates, "returns": rule.returns}
