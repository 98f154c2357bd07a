"""Opens an application: fetches its manifest, decides whether to trust it, asks the user, and replaces this process."""

import hashlib
import json
import operator
import os
import re
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from remotegpu_offload.reverse import confine
from remotegpu_offload.reverse.errors import ReverseError
from remotegpu_offload.reverse.fetch import Fetcher, Server
from remotegpu_offload.reverse.manifest import Manifest, Permissions, closure, key_text, opened, parse_key
from remotegpu_offload.reverse.store import Known, Pages, Register
from remotegpu_offload.reverse.tree import lay_out

_TOKEN: Final = "REMOTEGPU_TOKEN"  # noqa: S105 (a name; names.py is not part of remotegpu.pyz)
_REQUIREMENT: Final = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?\s*([^;]*)(;.*)?")
_BOUND: Final = re.compile(r"(>=|<=|==|!=|~=|<|>)\s*([0-9][0-9.]*)")
# With -I, neither PYTHONPATH nor the user's folders are on the module search path.
_BOOT: Final = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from remotegpu_offload.reverse.runner import main; main()"
)


@dataclass(frozen=True, slots=True)
class Wish:
    """The user's choices on the command line."""

    server: Server
    name: str
    folder: Path  # the client's cache
    arguments: tuple[str, ...] = ()
    trust: str = ""  # the key that must have signed the manifest; "": the same key as before
    stats: Path | None = None  # file for the transfer statistics


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings for the application's process, passed as one argument."""

    url: str
    ca: str
    cache: str
    root: str
    manifest: str  # path of the manifest's file
    base: str
    confined: bool
    stats: str
    trips: int
    bytes_in: int
    arguments: list[str]


def prepare(wish: Wish, ask: Callable[[str], bool]) -> tuple[Plan, dict[str, str]]:
    """Prepares the application. Returns the plan and the environment for its process.

    `ask` shows a text and returns whether the user agrees. Raises ReverseError.
    """
    # A folder for this origin only: an application can write into its own pages, and must not write into those of
    # others.
    folder = wish.folder / hashlib.sha256(f"{wish.server.place}/{wish.name}".encode()).hexdigest()[:16]
    pages, register = Pages(folder), Register(wish.folder)
    fetcher = Fetcher(wish.server, pages)
    try:
        manifest, key = opened(fetcher.manifest(wish.name))
        _check(manifest, wish.name)
        granted = _trusted(wish, register, manifest, key_text(key), ask)
        fetcher.fetch(manifest.files, closure(manifest.files, [manifest.entry]))
    finally:
        fetcher.close()
    root = lay_out(manifest, pages, folder)
    file = root.with_suffix(".json")
    file.write_bytes(manifest.to_bytes())
    environment = confine.variables(granted, os.environ)
    if wish.server.token:
        environment[_TOKEN] = wish.server.token
    plan = Plan(
        url=wish.server.url,
        ca=str(wish.server.ca.resolve()) if wish.server.ca else "",
        cache=str(folder),
        root=str(root),
        manifest=str(file),
        base=str(Path.cwd()),
        confined=confine.available(),
        stats=str(wish.stats.resolve()) if wish.stats else "",
        trips=fetcher.trips,
        bytes_in=fetcher.bytes_in,
        arguments=list(wish.arguments),
    )
    return plan, environment


def become(plan: Plan, environment: dict[str, str]) -> None:
    """Replaces this process by the application's, which has its own signals, terminal and exit code.

    Does not return.
    """
    root = package_root()
    words = [sys.executable, "-I", "-c", _BOOT, root, json.dumps(asdict(plan))]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, words, environment)  # noqa: S606 (replaces this process)


def package_root() -> str:
    """Returns the folder or zip file from which this package was imported."""
    return str(Path(__file__).absolute()).rpartition("/remotegpu_offload/")[0]


def _check(manifest: Manifest, name: str) -> None:
    if manifest.name != name:
        raise ReverseError(f"the server answers with {manifest.name} where {name} was asked for: do not trust it")
    minor = int(manifest.python.partition(".")[2])
    if sys.version_info < (3, minor):
        running = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise ReverseError(f"{name} needs Python {manifest.python}, and this is {running}: open it with a newer one")
    lacking = [each for each in manifest.requirements if not satisfied(each)]
    if lacking:
        raise ReverseError(
            f"{name} needs {', '.join(lacking)}, which this Python has not: install it with `{sys.executable} -m pip "
            f"install {' '.join(repr(each) for each in lacking)}`, and open the application again"
        )


def satisfied(requirement: str) -> bool:
    """Returns whether this Python has the package in a version within the bounds. Ignores the part after `;`."""
    found = _REQUIREMENT.fullmatch(requirement)
    if found is None:
        return False
    try:
        installed = _version(metadata.version(found[1]))
    except metadata.PackageNotFoundError:
        return False
    return all(_within(installed, sign, _version(bound)) for sign, bound in _BOUND.findall(found[2]))


def _version(text: str) -> tuple[int, ...]:
    numbers = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(map(int, numbers[0].split("."))) if numbers else ()


_SIGNS: Final[dict[str, Callable[[tuple[int, ...], tuple[int, ...]], bool]]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}


def _within(version: tuple[int, ...], sign: str, bound: tuple[int, ...]) -> bool:
    most = max(len(version), len(bound))
    ours, other = ((*each, *(0,) * (most - len(each))) for each in (version, bound))
    if sign == "~=":
        return ours >= other and ours[: len(bound) - 1] == bound[:-1]
    return _SIGNS[sign](ours, other)


def _trusted(wish: Wish, register: Register, manifest: Manifest, key: str, ask: Callable[[str], bool]) -> Permissions:
    """Returns the application's permissions, after the user's agreement if it is needed. Raises ReverseError."""
    origin = f"{wish.server.place}/{wish.name}"
    known = register.get(origin)
    if wish.trust and key_text(parse_key(wish.trust)) != key:
        raise ReverseError(f"{origin} is signed by {key}, and --trust names another key: do not run it, or correct it")
    if known is not None and known.key != key and not wish.trust:
        raise ReverseError(
            f"{origin} is signed by another key than before: {key}, and not {known.key}. If whoever runs the server "
            f"says that it is theirs, open it with --trust {key}; otherwise do not run it"
        )
    if known is not None and known.key == key and manifest.issued < known.issued:
        raise ReverseError(
            f"{origin} is older than the version that was opened before: somebody shows you an old one. If it was "
            f"taken back on purpose, remove its entry from {register.file}"
        )
    granted = known.granted if known is not None and known.key == key else None
    if granted is None or not manifest.permissions.within(granted):
        if not ask(description(origin, manifest, key, granted)):
            raise ReverseError(f"{origin} was not run: you did not agree")
        granted = manifest.permissions
    register.put(origin, Known(key, manifest.issued, granted))
    # The application gets only permissions that it asks for now. It may get earlier ones again without a question.
    return manifest.permissions


def description(origin: str, manifest: Manifest, key: str, granted: Permissions | None) -> str:
    """Returns a text that describes the application for the user's decision."""
    files = manifest.files.values()
    size = sum(file.size for file in files)
    before = "first time here" if granted is None else "opened before; it wants more now"
    enforced = (
        "the kernel holds it to that (Landlock)"
        if confine.available()
        else "NOTHING ENFORCES IT: this kernel has no Landlock, so it could read and write what you can"
    )
    rows = (
        ("application", f"{origin} ({before})"),
        ("signed by", key),
        ("program", f"{manifest.entry}, of {len(files)} files with {_size(size)}"),
        ("may read", _listed(manifest.permissions.read, granted.read if granted else None)),
        ("may write", _listed(manifest.permissions.write, granted.write if granted else None)),
        ("variables", _listed(manifest.permissions.env, granted.env if granted else None)),
        ("network", "all that this machine reaches"),
        ("files", enforced),
    )
    return "\n".join(f"  {title:12} {text}" for title, text in rows)


def _listed(wanted: tuple[str, ...], granted: tuple[str, ...] | None) -> str:
    marked = [f"{each} (new)" if granted is not None and each not in granted else each for each in wanted]
    return ", ".join(marked) or "nothing of yours"


def _size(count: int) -> str:
    return f"{count / (1 << 20):.1f} MiB" if count >= 1 << 20 else f"{count / 1024:.1f} KiB"
