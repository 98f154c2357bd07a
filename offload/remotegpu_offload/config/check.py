"""Reports the effect of each rule in this interpreter. `remotegpu offload check` runs it in the user's interpreter.

Reads {"folder", "config", "given"} as JSON from stdin, and prints a JSON list of findings in one line to stdout.
Imports the modules that rules name, as the program would; their output is redirected to stderr.
"""

import importlib
import importlib.machinery
import importlib.util
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Literal, TypeAlias

from remotegpu.api.quantities import format_bytes
from remotegpu_offload.code.allowed import allowed
from remotegpu_offload.config.formats import is_folder
from remotegpu_offload.config.load import parse
from remotegpu_offload.config.model import EVERY_OTHER, ClassRule, Config, FunctionRule, ModuleRule, TorchRule
from remotegpu_offload.config.suggest import suggestion
from remotegpu_offload.files import rules
from remotegpu_offload.functions import profiles

Level: TypeAlias = Literal["OK", "NOTE", "FAIL"]
# Patterns of names of variables and files that look like secrets.
_SECRET: Final = ("*TOKEN*", "*SECRET*", "*PASSWORD*", "*PASSWD*", "*API_KEY*", "*PRIVATE_KEY*", "*CREDENTIAL*")
_SECRET_FILES: Final = ("*.pem", "*.key", ".env", "id_rsa*", "id_ed25519*", ".netrc", "*credentials*")
_COUNTED_FILES: Final = 100_000
_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding of the report. `rule`: index of the rule in the configuration; None if no rule is concerned."""

    level: Level
    rule: int | None
    subject: str
    text: str


class _UnresolvedError(Exception):
    """A name in a rule does not exist; the message is for users."""


def findings(config: Config, *, given: bool) -> Iterator[Finding]:
    """Yields all findings for a configuration in this interpreter. `given`: a user wrote the configuration."""
    for index, rule in enumerate(config.rules):
        if isinstance(rule, TorchRule):
            yield _torch(index, rule, given)
        elif isinstance(rule, ModuleRule):
            yield _module(index, rule)
        else:
            yield from _callables(index, rule, config)
    yield from _code(config)
    yield from _files(config)
    yield from _env(config)
    if config.trust == "full":
        text = "what the acceptor returns is unpickled as it comes: who controls the acceptor controls this process"
        yield Finding("NOTE", None, "trust", text)


def _torch(index: int, rule: TorchRule, given: bool) -> Finding:
    subject = f"torch {', '.join(rule.devices)}"
    if importlib.util.find_spec("torch") is None:
        text = f"{sys.executable} has no torch: install it there, choose another with --python, or remove the rule"
        return Finding("FAIL" if given else "NOTE", index, subject, text)
    try:
        import torch  # noqa: PLC0415
        from torch.utils import backend_registration  # noqa: PLC0415
    except ImportError as error:
        return Finding("FAIL", index, subject, f"torch cannot be imported ({error}): repair the installation")
    if not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
        text = (
            f"torch {torch.__version__} cannot have a device in Python: use torch 2.9 or newer, or rules for functions"
        )
        return Finding("FAIL", index, subject, text)
    names = ", ".join(f"{name!r}" for name in rule.devices)
    text = f"tensors on {names} live at the acceptor, whose torch must be {'.'.join(torch.__version__.split('.')[:2])}"
    return Finding("OK", index, subject, text)


def _module(index: int, rule: ModuleRule) -> Finding:
    subject = f"module {rule.module}"
    message = profiles.missing(rule)
    if message:
        return Finding("FAIL", index, subject, message)
    if importlib.util.find_spec(rule.module.partition(".")[0]) is None:
        text = (
            f"{sys.executable} has no {rule.module}: install it there, choose another with --python, or remove the rule"
        )
        return Finding("FAIL", index, subject, text)
    named = [each.pattern for each in profiles.expand(rule)]
    lacking = [name for name in named if _is_lacking(name)]
    text = (
        f"{len(named) - len(lacking)} of its classes and functions live at the acceptor, which must have it installed"
    )
    if lacking:
        text += f"; the version here lacks {', '.join(lacking[:_SHOWN])}"
    return Finding("NOTE" if lacking else "OK", index, subject, text)


def _is_lacking(name: str) -> bool:
    try:
        _resolve(name)
    except _UnresolvedError:
        return True
    return False


def _callables(index: int, rule: FunctionRule | ClassRule, config: Config) -> Iterator[Finding]:
    kind = "class" if isinstance(rule, ClassRule) else "function"
    subject = f"{kind} {rule.pattern}"
    if rule.pattern.startswith("__main__."):
        yield Finding("NOTE", index, subject, "is looked for in the script when it runs")
        return
    try:
        found = _matching(rule, kind)
    except _UnresolvedError as error:
        yield Finding("FAIL", index, subject, str(error))
        return
    for name, value in found[:_SHOWN]:
        level, text = _callable(rule, value, config)
        yield Finding(level, index, f"{kind} {name}", text)
    if len(found) > _SHOWN:
        yield Finding("OK", index, subject, f"and {len(found) - _SHOWN} more with the same rule")


def _matching(rule: FunctionRule | ClassRule, kind: str) -> list[tuple[str, Any]]:
    wanted: Callable[[Any], bool] = inspect.isclass if kind == "class" else _is_function
    if not any(letter in rule.pattern for letter in "*?"):
        value = _resolve(rule.pattern)
        if not wanted(value):
            other = "function" if kind == "class" else "class"
            advice = f"write `{other}: {rule.pattern}`" if callable(value) else f"name a {kind}"
            raise _UnresolvedError(f"is not a {kind} but {_a(type(value).__name__)}: {advice}")
        return [(rule.pattern, value)]
    parts = rule.pattern.split(".")
    fixed = parts[: next(i for i, part in enumerate(parts) if "*" in part or "?" in part)]
    holder = _resolve(".".join(fixed))
    names = {
        f"{'.'.join(fixed)}.{name}": value
        for name, value in vars(holder).items()
        # A module does not own the names that it imports.
        if wanted(value) and getattr(value, "__module__", None) == getattr(holder, "__module__", holder.__name__)
    }
    found = [(name, value) for name, value in sorted(names.items()) if rule.matches(name)]
    if not found:
        possible = ", ".join(name.rpartition(".")[2] for name in sorted(names)) or "nothing"
        raise _UnresolvedError(f"matches no {kind}: {'.'.join(fixed)} has {possible}")
    return found


def _resolve(name: str) -> Any:
    parts = name.split(".")
    module: ModuleType | None = None
    depth = 0
    while depth < len(parts) and (module is None or hasattr(module, "__path__")):
        part = ".".join(parts[: depth + 1])
        try:
            module = importlib.import_module(part)
        except ModuleNotFoundError as error:
            if error.name == part:
                break
            raise _UnresolvedError(f"importing {part} fails: {error}; install {error.name} here") from None
        except Exception as error:
            raise _UnresolvedError(f"importing {part} fails: {_one_line(error)}; correct {part}") from None
        depth += 1
    if module is None:
        tops = {path.name for path in _importable()}
        raise _UnresolvedError(f"there is no module {parts[0]!r} in this interpreter; {_near(parts[0], tops)}")
    value: Any = module
    for position in range(depth, len(parts)):
        if not hasattr(value, parts[position]):
            holder = ".".join(parts[:position])
            raise _UnresolvedError(f"{holder} has no {parts[position]!r}; {_near(parts[position], _public(value))}")
        value = getattr(value, parts[position])
    return value


def _callable(rule: FunctionRule | ClassRule, value: Any, config: Config) -> tuple[Level, str]:
    if isinstance(rule, ClassRule):
        if not _can_be_subclassed(value):
            return "FAIL", "no class can be derived from it, so it cannot have a stub: name functions that use it"
        head = "instances live there; methods are calls"
    else:
        head = "runs there"
    unknown = _unknown_arguments(rule, value)
    if unknown:
        argument, parameters = unknown
        return "FAIL", f"has no argument {argument!r}; {_near(argument, parameters)}"
    travel = "; ".join(filter(None, [head, _arguments(rule), _where_from(value, config)]))
    if isinstance(rule, ClassRule) and _is_torch_module(value):
        return "NOTE", (
            f"{travel}; gradients do not come back through its calls, and parameters() gives copies: to train it, name "
            "the function that trains, or use a torch rule instead"
        )
    return "OK", travel


def _arguments(rule: FunctionRule | ClassRule) -> str:
    said = [f"{'others' if name == EVERY_OTHER else name} by {mode}" for name, mode in rule.args.items()]
    if isinstance(rule.mutates, tuple) and rule.mutates:
        said.append(f"{', '.join(rule.mutates)} written back")
    elif rule.mutates == "auto":
        said.append("changed arguments written back")
    if rule.returns != "value":
        said.append(f"result by {rule.returns}")
    return ", ".join(said)


def _unknown_arguments(rule: FunctionRule | ClassRule, value: Any) -> tuple[str, list[str]] | None:
    """Returns the first argument of the rule that no callable accepts, with the existing parameters; None if none."""
    takers = [value]
    if isinstance(rule, ClassRule):
        takers += [member for name, member in inspect.getmembers(value) if _is_function(member) and name[:2] != "__"]
    parameters: list[str] = []
    for taker in takers:
        try:
            found = inspect.signature(taker).parameters.values()
        except (TypeError, ValueError):
            return None  # a C function without a signature: nothing is known
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in found):
            return None
        parameters += [parameter.name for parameter in found]
    named = [*rule.args, *(rule.mutates if isinstance(rule.mutates, tuple) else ())]
    return next(((name, parameters) for name in named if name not in parameters and name != EVERY_OTHER), None)


def _where_from(value: Any, config: Config) -> str:
    module = sys.modules.get(getattr(value, "__module__", "") or "")
    origin = getattr(module, "__file__", None)
    top = module.__name__.partition(".")[0] if module else ""
    if origin is None or not origin.endswith(".py"):
        return f"{top or 'it'} must be installed at the acceptor"
    if allowed(config.code.page, config.code.never, str(config.folder)).module(
        module.__name__ if module else "", origin
    ):
        return "its source travels"
    return f"its source stays here (code.page does not name it), so {top} must be installed at the acceptor"


def _code(config: Config) -> Iterator[Finding]:
    for key, entries in (("page", config.code.page), ("never", config.code.never)):
        for entry in entries:
            subject = f"code.{key} {entry}"
            if is_folder(entry):
                folder = config.folder / Path(entry).expanduser()
                if not folder.exists():
                    yield Finding("FAIL", None, subject, f"{folder} does not exist: correct the name")
            else:
                yield from _paged_module(subject, entry, key == "page")


def _paged_module(subject: str, entry: str, may: bool) -> Iterator[Finding]:
    parts = entry.split(".")
    name = ".".join(parts[: next((n for n, part in enumerate(parts) if "*" in part or "?" in part), len(parts))])
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        tops = {path.name for path in _importable()}
        yield Finding("FAIL", None, subject, f"there is no module {name!r} in this interpreter; {_near(name, tops)}")
        return
    if not may:
        yield Finding("OK", None, subject, "its source never travels")
        return
    folders = [Path(place) for place in spec.submodule_search_locations or ()]
    machine = [path for folder in folders for path in folder.rglob("*") if path.name.endswith(_EXTENSIONS)]
    if spec.origin and spec.origin.endswith(_EXTENSIONS):
        machine.append(Path(spec.origin))
    if machine:
        text = f"has machine code ({machine[0].name}), which never travels: install {name} at the acceptor"
        yield Finding("NOTE", None, subject, text)
    elif folders:
        count = sum(1 for folder in folders for _ in folder.rglob("*.py"))
        yield Finding("OK", None, subject, f"{count} files of source may travel")
    else:
        yield Finding("OK", None, subject, "its source may travel")


_EXTENSIONS: Final = tuple(importlib.machinery.EXTENSION_SUFFIXES)


def _files(config: Config) -> Iterator[Finding]:
    for key, patterns in (("read", config.files.read), ("write", config.files.write)):
        for pattern in patterns:
            yield _pattern(key, pattern, config.folder)


def _pattern(key: str, text: str, folder: Path) -> Finding:
    subject = f"files.{key} {text}"
    found = rules.pattern(text, str(folder))
    if not Path(found.root).exists():
        level: Level = "NOTE" if key == "write" else "FAIL"
        return Finding(level, None, subject, f"{found.root} does not exist: correct the name, or make it")
    if key == "write":
        return Finding("OK", None, subject, "the acceptor may make and change these files")
    files = [path for path in islice(_below(Path(found.root)), _COUNTED_FILES) if found.matches(str(path))]
    secret = [path for path in files if any(fnmatchcase(path.name.lower(), name) for name in _SECRET_FILES)]
    if secret:
        return Finding("NOTE", None, subject, f"the acceptor may read {secret[0]}, which looks like a secret")
    size = sum(path.stat().st_size for path in files if path.is_file())
    text = f"{len(files)} files, {format_bytes(size)}, may be read"
    return Finding("OK" if files else "NOTE", None, subject, text)


def _below(root: Path) -> Iterator[Path]:
    if root.is_file():
        yield root
    for folder, _, names in os.walk(root):
        yield from (Path(folder, name) for name in names)


def _env(config: Config) -> Iterator[Finding]:
    for pattern in config.env.passes:
        found = sorted(name for name in os.environ if fnmatchcase(name, pattern))
        secret = [name for name in found if any(fnmatchcase(name.upper(), form) for form in _SECRET)]
        if secret:
            yield Finding("NOTE", None, f"env.pass {pattern}", f"{secret[0]} crosses, which looks like a secret")
        elif not found:
            yield Finding("NOTE", None, f"env.pass {pattern}", "no variable has this name now")
        else:
            yield Finding("OK", None, f"env.pass {pattern}", f"{', '.join(found[:_SHOWN])} crosses")


def _is_torch_module(kind: type) -> bool:
    return any((base.__module__, base.__name__) == ("torch.nn.modules.module", "Module") for base in kind.__mro__)


def _is_function(value: Any) -> bool:
    return callable(value) and not inspect.isclass(value)


def _can_be_subclassed(value: type) -> bool:
    return bool(value.__flags__ & (1 << 10))  # Py_TPFLAGS_BASETYPE


def _public(value: Any) -> list[str]:
    return [name for name in dir(value) if not name.startswith("_")]


def _near(name: str, known: Any) -> str:
    said = suggestion(name, known)
    return said if said.startswith("did") else "correct the name"


def _a(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _one_line(error: Exception) -> str:
    return traceback.format_exception_only(error)[-1].strip()


def _importable() -> Iterator[Path]:
    for entry in sys.path:
        try:
            yield from (path.with_suffix("") for path in Path(entry or ".").iterdir() if path.suffix in {"", ".py"})
        except OSError:
            continue


def main() -> None:
    request = json.loads(sys.stdin.read())
    # The output of imported modules must not mix with the findings.
    answer = os.dup(1)
    os.dup2(2, 1)
    sys.path.insert(0, request["folder"])
    config = parse(request["config"], folder=Path(request["folder"]))
    found = [asdict(finding) for finding in findings(config, given=request["given"])]
    with os.fdopen(answer, "w") as out:
        out.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
