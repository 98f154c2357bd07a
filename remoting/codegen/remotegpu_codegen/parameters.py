"""Parameters of the functions of driver and NVML, from `parameters.yaml` and `nvml_parameters.yaml`."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from remotegpu_codegen.registry import RegistryError

HANDLES = frozenset(
    "context module function kernel library link stream event pool physical graph green".split()  # noqa: SIM905
)
# Handles that occur only in unrecorded functions.
OTHER_HANDLES = frozenset("array texture surface node exec user_object conditional nvml_device".split())  # noqa: SIM905
PARAMETER = re.compile(
    r"(?P<way>in out |out |later |out if \[(?P<section>[\w ]+)(, (?P<when>\w+(=\d+)?))?\] )?"
    r"(?P<new>new )?(?P<kind>\w+)(?:\((?P<arguments>[^()]*)\))? (?P<name>\w+)"
)
FIELD = re.compile(
    r"(?P<offset>\d+) (?P<out>out )?(?P<kind>\w+) (?P<name>\w+)( if (?P<of>\w+)=(?P<values>\d+(\|\d+)*))?"
)


@dataclass(frozen=True)
class Parameter:
    kind: str
    arguments: tuple[str, ...]
    name: str
    out: bool
    """The function writes there."""
    new: bool
    read: bool = False
    """The function reads what is there before it writes: `in out`."""
    later: bool = False
    """The stream writes it, after the function has returned."""
    section: str | None = None
    """Where CUDA's documentation lets it be unwritten."""
    when: str | None = None
    """When it is written: `parameter=value`, or `failure`."""


@dataclass(frozen=True)
class Field:
    offset: int
    kind: str
    name: str
    out: bool = False
    of: str | None = None
    """The field that says whether this one counts."""
    values: tuple[int, ...] = ()


@dataclass(frozen=True)
class Structure:
    size: int
    fields: tuple[Field, ...]


@dataclass(frozen=True)
class Parameters:
    structures: Mapping[str, Structure]
    attributes: Mapping[str, Mapping[int, str]]
    functions: Mapping[str, tuple[Parameter, ...]]
    """Those that the recorder knows."""
    unrecorded: Mapping[str, tuple[Parameter, ...]]
    nvml: Mapping[str, tuple[Parameter, ...]]

    @property
    def all(self) -> dict[str, tuple[Parameter, ...]]:
        return {**self.functions, **self.unrecorded, **self.nvml}


def load(folder: Path) -> Parameters:
    """Reads `parameters.yaml` and `nvml_parameters.yaml`.

    Raises RegistryError if the files contradict themselves.
    """
    driver, nvml = (yaml.safe_load((folder / f"{name}.yaml").read_text()) for name in ("parameters", "nvml_parameters"))
    structures = {name: _structure(fields) for name, fields in (driver["structures"] | nvml["structures"]).items()}
    recorded, unrecorded = _functions(driver["functions"]), _functions(driver["unrecorded"])
    if twice := recorded.keys() & unrecorded.keys():
        raise RegistryError(f"parameters.yaml: {sorted(twice)} are recorded and unrecorded")
    return Parameters(structures, driver["attributes"], recorded, unrecorded, _functions(nvml["functions"]))


def _functions(described: Mapping[str, Sequence[str]]) -> dict[str, tuple[Parameter, ...]]:
    return {symbol: tuple(map(_parameter, texts)) for symbol, texts in described.items()}


def _structure(described: Sequence[Any]) -> Structure:
    size, *fields = described
    structure = Structure(int(size), tuple(map(_field, fields)))
    names = {field.name for field in structure.fields}
    if unknown := {field.of for field in structure.fields if field.of} - names:
        raise RegistryError(f"a structure has no field {sorted(unknown)}")
    return structure


def _field(text: str) -> Field:
    found = FIELD.fullmatch(text)
    if found is None:
        raise RegistryError(f"{text!r} is not 'offset [out] type name [if field=value]'")
    values = tuple(int(value) for value in (found["values"] or "").split("|") if value)
    return Field(int(found["offset"]), found["kind"], found["name"], found["out"] is not None, found["of"], values)


def _parameter(text: str) -> Parameter:
    found = PARAMETER.fullmatch(text)
    if found is None:
        raise RegistryError(f"{text!r} is not '[direction] type name'")
    arguments = tuple(a.strip() for a in (found["arguments"] or "").split(",") if a.strip())
    way = (found["way"] or "").strip()
    return Parameter(
        kind=found["kind"],
        arguments=arguments,
        name=found["name"],
        out=bool(way),
        new=found["new"] is not None,
        read=way == "in out",
        later=way == "later",
        section=found["section"],
        when=found["when"],
    )
