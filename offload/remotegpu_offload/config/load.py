"""Finding and reading `remotegpu.yaml`. The only I/O of this package."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from remotegpu.api.names import CONFIG_ENV
from remotegpu_offload.config.errors import ConfigError, Problem
from remotegpu_offload.config.model import (
    ClassRule,
    CodeRules,
    Config,
    EnvRules,
    FileRules,
    FunctionRule,
    ModuleRule,
    Rule,
    SessionRules,
    TorchRule,
)
from remotegpu_offload.config.nodes import Node, YamlError, from_json, from_yaml
from remotegpu_offload.config.schema import Checker, schema

FILE_NAME: Final = "remotegpu.yaml"
_LARGEST: Final = 1 << 20
# What the model calls otherwise, because there it has a unit.
IN_MODEL: Final = {
    "fraction": "milli",
    "memory": "memory_bytes",
    "on_disconnect": "resume_seconds",
    "snapshots": "snapshot_seconds",
    "cache": "cache_bytes",
    "pass": "passes",
}


def find(
    explicit: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] = os.environ,
    directory: Path | None = None,
) -> Path | None:
    """Where the configuration lies: `explicit`, REMOTEGPU_CONFIG, or remotegpu.yaml in the directory; None: nowhere."""
    if explicit is not None:
        return Path(explicit)
    if named := environ.get(CONFIG_ENV):
        return Path(named)
    here = (directory or Path.cwd()) / FILE_NAME
    return here if here.is_file() else None


def load(
    explicit: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] = os.environ,
    directory: Path | None = None,
) -> Config:
    """The configuration that holds here; where there is no file, torch's `cuda` is offloaded and nothing else.

    Raises ConfigError for a file that cannot be read or says what is not possible.
    """
    path = find(explicit, environ, directory)
    if path is None:
        return Config(folder=directory or Path.cwd())
    path = path.absolute()
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(
            str(path),
            [Problem(1, "", f"cannot be read ({reason}): correct --config or {CONFIG_ENV}, or make the file")],
        ) from None
    if len(content) > _LARGEST:
        raise ConfigError(str(path), [Problem(1, "", "is larger than 1 MiB: this is no configuration")])
    return parse(content, source=path)


def parse(content: str | bytes, source: Path | None = None, folder: Path | None = None) -> Config:
    """The configuration that this YAML says. Names are relative to the folder of `source`, or to `folder`."""
    name = str(source or FILE_NAME)
    root = _read(content, name)
    if root is None:
        raise ConfigError(name, [Problem(1, "", "is empty: it must at least say `version: 1`")])
    checker = Checker()
    data = checker.check(root, schema())
    if not checker.problems:
        checker.problems += _contradictions(data, checker.lines)
    if checker.problems:
        raise ConfigError(name, sorted(checker.problems, key=lambda problem: problem.line))
    return _build(data, checker.lines, source, folder or (source.parent if source else Path.cwd()))


def _read(content: str | bytes, name: str) -> Node | None:
    try:
        return from_yaml(content)
    except YamlError as error:
        raise ConfigError(name, [Problem(error.line, "", f"is no YAML: {error}")]) from None
    except ImportError:
        # The user's interpreter may lack PyYAML; what `dump` wrote for it is JSON.
        try:
            return from_json(content)
        except ValueError:
            need = f"needs PyYAML, which {sys.executable} lacks: install it there (`python -m pip install pyyaml`)"
            raise ConfigError(name, [Problem(1, "", need)]) from None


def _contradictions(data: dict[str, Any], lines: dict[str, int]) -> list[Problem]:
    session = data.get("session") or {}
    found = []
    if "fraction" in session and "memory" in session:
        found.append(Problem(lines["session.memory"], "session", "says fraction and memory: a share is one of them"))
    if session.get("on_disconnect") is not None and session.get("snapshots") is None:
        found.append(
            Problem(
                lines["session.on_disconnect"],
                "session.on_disconnect",
                "resumes from nothing: add `snapshots: 30s`, or another time, to session",
            )
        )
    return found


def _build(data: dict[str, Any], lines: dict[str, int], source: Path | None, folder: Path) -> Config:
    session = data.get("session", {})
    kwargs: dict[str, Any] = {
        "session": SessionRules(**{IN_MODEL.get(key, key): value for key, value in session.items()}),
        "code": CodeRules(**data.get("code", {})),
        "files": FileRules(**{IN_MODEL.get(key, key): value for key, value in data.get("files", {}).items()}),
        "env": EnvRules(**{IN_MODEL.get(key, key): value for key, value in data.get("env", {}).items()}),
    }
    if "offload" in data:
        kwargs["rules"] = tuple(_rule(item, lines[f"offload[{n}]"]) for n, item in enumerate(data["offload"]))
    if "trust" in data:
        kwargs["trust"] = data["trust"]
    return Config(source=source, folder=folder, **kwargs)


def _rule(item: dict[str, Any], line: int) -> Rule:
    if "torch" in item:
        return TorchRule(**item["torch"], line=line)
    if "module" in item:
        return ModuleRule(**item, line=line)
    for key, kind in (("function", FunctionRule), ("class", ClassRule)):
        if key in item:
            return kind(item.pop(key), **item, line=line)
    raise AssertionError(item)  # the schema has no other kind
