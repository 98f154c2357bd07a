"""The configuration in the form that other packages read: frozen, complete, with the only copy of every default."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, Literal, TypeAlias

Backend: TypeAlias = Literal["cuda", "rocm", "xpu", "cpu"]
# value: a copy is sent. ref: the object stays where it is, and a handle is sent. auto: a copy is sent, but of large
# buffers only the pages that the other side lacks.
ArgumentMode: TypeAlias = Literal["value", "ref", "auto"]
TorchDevice: TypeAlias = Literal["cuda", "xpu", "mps"]

EVERY_OTHER: Final = "*"  # in `args`: all arguments that are not named


@dataclass(frozen=True, slots=True)
class SessionRules:
    """The choice of an acceptor, and the session's share of a GPU: `milli` or `memory_bytes`; without both, a whole
    GPU."""

    backends: tuple[Backend, ...] = ()  # in order of preference; empty: any back end
    environment: str = "auto"  # name of an environment of the appliance; auto: the first that fits
    milli: int | None = None
    memory_bytes: int | None = None
    resume_seconds: int | None = None  # how long to look for another appliance after a loss; None: fail at once
    snapshot_seconds: int | None = None  # seconds between snapshots for resuming; None: no snapshots
    skew: Literal["refuse", "allow"] = "refuse"  # allow: Python and torch may have other minor versions


@dataclass(frozen=True, slots=True)
class TorchRule:
    """Torch mode: these device names refer to the remote device."""

    devices: tuple[TorchDevice, ...] = ("cuda",)
    line: int = 0


@dataclass(frozen=True, slots=True)
class _CallRule:
    """The fields that function and class rules share: how arguments and results of their calls are sent."""

    pattern: str
    args: Mapping[str, ArgumentMode] = field(default_factory=dict)
    mutates: tuple[str, ...] | Literal["none", "auto"] = "none"
    returns: ArgumentMode = "value"
    line: int = 0

    def matches(self, name: str) -> bool:
        """Returns whether the rule applies to this qualified name, such as "mypkg.train.train_epoch"."""
        return fnmatchcase(name, self.pattern)

    def mode(self, argument: str) -> ArgumentMode:
        return self.args.get(argument, self.args.get(EVERY_OTHER, "auto"))

    @property
    def module(self) -> str:
        """The part of the pattern before the last dot: the module or class that holds the callable."""
        return self.pattern.rpartition(".")[0]


@dataclass(frozen=True, slots=True)
class FunctionRule(_CallRule):
    """Function mode: calls of functions with this name, which may be a glob, run in the acceptor."""


@dataclass(frozen=True, slots=True)
class ClassRule(_CallRule):
    """Function mode: instances of this class exist in the acceptor, and its methods run there."""


@dataclass(frozen=True, slots=True)
class ModuleRule:
    """A rule of module mode: the functions and classes in a profile run in the acceptor.

    `module` is the library. `profile` is the profile's name, or "auto" for the profile with the library's name.
    """

    module: str
    profile: str = "auto"
    line: int = 0


Rule: TypeAlias = TorchRule | FunctionRule | ClassRule | ModuleRule


@dataclass(frozen=True, slots=True)
class CodeRules:
    """The source that may be sent to the acceptor.

    Entries are modules ("mypkg") or folders ("./", relative to the file).
    """

    page: tuple[str, ...] = ("./",)
    never: tuple[str, ...] = ()
    prefer: Literal["server-installed", "client"] = "server-installed"  # whose copy of a module is used


@dataclass(frozen=True, slots=True)
class FileRules:
    """The files that the acceptor may read and write here: globs, relative to the file.

    `cache_bytes` is the size of the acceptor's cache.
    """

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    cache_bytes: int = 4 << 30


@dataclass(frozen=True, slots=True)
class EnvRules:
    """The environment variables that are sent to the acceptor: names or globs. No other variable is sent."""

    passes: tuple[str, ...] = ()

    def crosses(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.passes)


@dataclass(frozen=True, slots=True)
class Config:
    """One `remotegpu.yaml`. The default values apply if no file exists."""

    source: Path | None = None  # None: no file was found
    folder: Path = field(default_factory=Path.cwd)  # paths in the file are relative to this folder
    session: SessionRules = SessionRules()
    rules: tuple[Rule, ...] = (TorchRule(),)
    code: CodeRules = CodeRules()
    files: FileRules = FileRules()
    env: EnvRules = EnvRules()
    trust: Literal["restricted", "full"] = "restricted"  # full: results are unpickled without restrictions

    @property
    def torch(self) -> TorchRule | None:
        """All torch rules merged into one; None: tensors stay here."""
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
