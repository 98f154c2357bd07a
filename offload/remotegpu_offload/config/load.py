"""Finds and reads `remotegpu.yaml`. The only I/O of this package."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from remotegpu.api.names import CONFIG_ENV
from remotegpu_offload.config.errors import ConfigError, Problem
from remotegpu_offload.config.model import Config
from remotegpu_offload.config.nodes import Node, YamlError, from_json, from_yaml
from remotegpu_offload.config.reader import Reader

FILE_NAME: Final = "remotegpu.yaml"
_LARGEST: Final = 1 << 20


def find(
    explicit: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] = os.environ,
    directory: Path | None = None,
) -> Path | None:
    """Returns the path of the configuration: `explicit`, REMOTEGPU_CONFIG, or remotegpu.yaml in the directory.

    None if no file is given or found.
    """
    if explicit is not None:
        return Path(explicit)
    if named := environ.get(CONFIG_ENV):
        return Path(named)
    default = (directory or Path.cwd()) / FILE_NAME
    return default if default.is_file() else None


def load(
    explicit: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] = os.environ,
    directory: Path | None = None,
) -> Config:
    """Returns the configuration for this folder. Without a file, torch's `cuda` is offloaded and nothing else.

    Raises ConfigError if the file cannot be read, or if its content is invalid.
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
    """Parses the configuration from YAML. Its paths are relative to the folder of `source`, or to `folder`.

    Raises ConfigError.
    """
    name = str(source or FILE_NAME)
    root = _read(content, name)
    if root is None:
        raise ConfigError(name, [Problem(1, "", "is empty: it must at least say `version: 1`")])
    reader = Reader()
    found = reader.config(root)
    if reader.problems:
        raise ConfigError(name, sorted(reader.problems, key=lambda problem: problem.line))
    return Config(source=source, folder=folder or (source.parent if source else Path.cwd()), **found)


def _read(content: str | bytes, name: str) -> Node | None:
    try:
        return from_yaml(content)
    except YamlError as error:
        raise ConfigError(name, [Problem(error.line, "", f"is no YAML: {error}")]) from None
    except ImportError:
        # The user's interpreter may lack PyYAML; `dump` writes JSON for it.
        try:
            return from_json(content)
        except ValueError:
            need = f"needs PyYAML, which {sys.executable} lacks: install it there (`python -m pip install pyyaml`)"
            raise ConfigError(name, [Problem(1, "", need)]) from None
