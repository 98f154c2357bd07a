"""The configuration as the other parts read it: frozen, complete, every default written here once."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, Literal, TypeAlias

Backend: TypeAlias = Literal["cuda", "rocm", "xpu", "cpu"]
# value: a copy travels; ref: the object stays where it is, and a handle travels; auto: by value, and large buffers as
# pages, of which only those travel that the other side lacks.
ArgumentMode: TypeAlias = Literal["value", "ref", "auto"]
TorchDevice: TypeAlias = Literal["cuda", "xpu", "mps"]

EVERY_OTHER: Final = "*"  # in `args`: every argument that is not named


@dataclass(frozen=True, slots=True)
class SessionRules:
    """The place of the program's other half, and its part of a GPU: `milli` or `memory_bytes`, else all of it."""

    backends: tuple[Backend, ...] = ()  # best first; empty: whatever the appliance has
    environment: str = "auto"  # the name of one of the appliance's environments; auto: the first that fits
    milli: int | None = None
    memory_bytes: int | None = None
    resume_seconds: int | None = None  # after a lost appliance, look for another for so long; None: fail at once
    snapshot_seconds: int | None = None  # how old the state may be that is resumed from; None: no snapshots
    skew: Literal["refuse", "allow"] = "refuse"  # another minor version of Python or torch at the acceptor


@dataclass(frozen=True, slots=True)
class TorchRule:
    """Torch mode: these device names mean the remote device."""

    devices: tuple[TorchDevice, ...] = ("cuda",)
    line: int = 0


@dataclass(frozen=True, slots=True)
class _CallRule:
    """Fields that function and class rules share: how arguments and results of their calls travel."""

    pattern: str
    args: Mapping[str, ArgumentMode] = field(default_factory=dict)
    mutates: tuple[str, ...] | Literal["none", "auto"] = "none"
    returns: ArgumentMode = "value"
    line: int = 0

    def matches(self, name: str) -> bool:
        """Whether the rule means this qualified name: "mypkg.train.train_epoch"."""
        return fnmatchcase(name, self.pattern)

    def mode(self, argument: str) -> ArgumentMode:
        return self.args.get(argument, self.args.get(EVERY_OTHER, "auto"))

    @property
    def module(self) -> str:
        """The part of the pattern before the last dot: where the callable is found."""
        return self.pattern.rpartition(".")[0]


@dataclass(frozen=True, slots=True)
class FunctionRule(_CallRule):
    """Function mode: calls of functions with this name, which may be a glob, run at the acceptor."""


@dataclass(frozen=True, slots=True)
class ClassRule(_CallRule):
    """Function mode: instances of this class live at the acceptor; its methods are calls."""


@dataclass(frozen=True, slots=True)
class ModuleRule:
    """Module mode: a module behind a stub profile. `profile` is that profile's name; auto: the module's own."""

    module: str
    profile: str = "auto"
    line: int = 0


Rule: TypeAlias = TorchRule | FunctionRule | ClassRule | ModuleRule


@dataclass(frozen=True, slots=True)
class CodeRules:
    """The source that may leave the client. Entries are modules ("mypkg") or folders ("./", relative to the config)."""

    page: tuple[str, ...] = ("./",)
    never: tuple[str, ...] = ()
    prefer: Literal["server-installed", "client"] = "server-installed"  # where both sides have a module


@dataclass(frozen=True, slots=True)
class FileRules:
    """The files that the acceptor may read and write here: globs, relative to the config; `cache_bytes` held there."""

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    cache_bytes: int = 4 << 30


@dataclass(frozen=True, slots=True)
class EnvRules:
    """The environment variables that the acceptor gets: names or globs. Nothing else crosses."""

    passes: tuple[str, ...] = ()

    def crosses(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.passes)


@dataclass(frozen=True, slots=True)
class Config:
    """One `remotegpu.yaml`; without arguments the defaults that hold without a file."""

    source: Path | None = None  # None: no file was found
    folder: Path = field(default_factory=Path.cwd)  # relative names are relative to this
    session: SessionRules = SessionRules()
    rules: tuple[Rule, ...] = (TorchRule(),)
    code: CodeRules = CodeRules()
    files: FileRules = FileRules()
    env: EnvRules = EnvRules()
    trust: Literal["restricted", "full"] = "restricted"  # full: results of the acceptor are unpickled as they come

    @property
    def torch(self) -> TorchRule | None:
        """Merges all torch rules into one; None: tensors stay here."""
        found = [rule for rule in self.rules if isinstance(rule, TorchRule)]
        if not found:
            return None
        return TorchRule(tuple(dict.fromkeys(device for rule in found for device in rule.devices)), found[0].line)

    @property
    def functions(self) -> tuple[FunctionRule, ...]:
        return tuple(rule for rule in self.rules if isinstance(rule, FunctionRule))

    @property
    def classes(self) -> tuple[ClassRule, ...]:
        return tuple(rule for rule in self.rules if isinstance(rule, ClassRule))

    @property
    def modules(self) -> tuple[ModuleRule, ...]:
        return tuple(rule for rule in self.rules if isinstance(rule, ModuleRule))
