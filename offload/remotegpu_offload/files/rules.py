"""Rules for the client's files that may be read and written. Pure, but for resolving the rules' own folders at the
start."""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import translate
from typing import Final

_WILD: Final = re.compile(r"[*?\[]")
LONGEST_PATH: Final = 4096


class PathError(ValueError):
    """A path that cannot be used: empty, too long, with a NUL, or not absolute. The message says which."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A glob as the configuration has it, against real paths.

    `*`, `?` and `[...]` match within one name, `**` any number of folders. As in shells, wildcards match no name that
    begins with a dot (but see `hidden`). A pattern without wildcards, or one that ends in "/", means that file, or that
    folder with all in it.
    """

    text: str  # as it was written, for people
    root: str  # the real path of what precedes the first wildcard
    names: tuple[str, ...]  # the rest, one entry a folder level

    def matches(self, real: str) -> bool:
        rest = below(real, self.root)
        return rest is not None and _match(rest, self.names)

    def leads_to(self, real: str) -> bool:
        """Whether it is a folder on the way to what may match."""
        return below(self.root, real) is not None


def pattern(text: str, base: str) -> Pattern:
    """Returns the pattern of an entry of `files.read` or `files.write`, relative to the folder `base`."""
    absolute = os.path.join(base, os.path.expanduser(text))
    parts = [part for part in absolute.split("/") if part not in ("", ".")]
    wild = next((number for number, part in enumerate(parts) if _WILD.search(part)), len(parts))
    names = tuple(parts[wild:]) or ("**",)
    if text.endswith("/") and names[-1] != "**":
        names = (*names, "**")
    return Pattern(text, os.path.realpath("/" + "/".join(parts[:wild])), names)


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules in `files:` of the configuration."""

    read: Sequence[Pattern] = ()
    write: Sequence[Pattern] = ()

    def may_read(self, real: str) -> bool:
        # What may be written may be read back: programs check what they made.
        return any(entry.matches(real) for entry in (*self.read, *self.write))

    def may_write(self, real: str) -> bool:
        return any(entry.matches(real) for entry in self.write)

    def may_look(self, real: str) -> bool:
        """Whether the acceptor may learn its size and times: for what may be read, and for the folders around it."""
        return self.may_read(real) or any(entry.leads_to(real) for entry in (*self.read, *self.write))

    @property
    def roots(self) -> list[str]:
        return sorted({entry.root for entry in (*self.read, *self.write)})


def rules(read: Iterable[str], write: Iterable[str], base: str) -> Rules:
    return Rules([pattern(text, base) for text in read], [pattern(text, base) for text in write])


def checked(path: object) -> str:
    """Checks a path that a stranger sent, and returns it. Raises PathError."""
    if not isinstance(path, str) or not path or len(path.encode("utf-8", "surrogateescape")) > LONGEST_PATH:
        raise PathError(f"not a path of 1 to {LONGEST_PATH} bytes")
    if "\0" in path:
        raise PathError("a path with a NUL byte")
    if not path.startswith("/"):
        raise PathError(f"{path!r} is not absolute")
    return path


def below(path: str, folder: str) -> list[str] | None:
    """Returns the names that lead from the folder to the path; None if it does not lie there."""
    if path == folder:
        return []
    prefix = folder if folder.endswith("/") else folder + "/"
    return [name for name in path[len(prefix) :].split("/") if name] if path.startswith(prefix) else None


def hidden(name: str) -> bool:
    """Whether globs skip the name. Not the folders with two dots in which the files of a ConfigMap really lie: there
    `steps.py` is a link to `..2026_11_22_10_00_00.1/steps.py`."""
    return name.startswith(".") and not name.startswith("..")


def _match(rest: Sequence[str], names: Sequence[str]) -> bool:
    if not names:
        return not rest
    if names[0] == "**":
        if _match(rest, names[1:]):
            return True
        return bool(rest) and not hidden(rest[0]) and _match(rest[1:], names)
    return bool(rest) and _fits(rest[0], names[0]) and _match(rest[1:], names[1:])


def _fits(name: str, wild: str) -> bool:
    if name.startswith(".") and not wild.startswith("."):
        return False
    return re.match(translate(wild), name) is not None
