"""The rules for the client's files that may be read and written. Pure, except for resolving the rules' own folders."""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import translate
from typing import Final

_WILD: Final = re.compile(r"[*?\[]")
LONGEST_PATH: Final = 4096


class PathError(ValueError):
    """A path is invalid: empty, too long, not absolute, or with a NUL byte. The message says which."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A glob of the configuration, which matches real paths.

    `*`, `?` and `[...]` match within one name, `**` matches any number of folders. As in shells, wildcards match no
    name that begins with a dot (see `hidden` for the exception). A pattern without wildcards, or one that ends in "/",
    matches that file, or that folder with all its content.
    """

    text: str  # the original text, for messages
    root: str  # the real path of the part before the first wildcard
    names: tuple[str, ...]  # the other parts, one for each folder level

    def matches(self, real: str) -> bool:
        rest = below(real, self.root)
        return rest is not None and _match(rest, self.names)

    def leads_to(self, real: str) -> bool:
        """Returns whether the path is a folder that may contain a match."""
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
        # Programs read the files that they have written.
        return any(entry.matches(real) for entry in (*self.read, *self.write))

    def may_write(self, real: str) -> bool:
        return any(entry.matches(real) for entry in self.write)

    def may_look(self, real: str) -> bool:
        """Returns whether the acceptor may read size and times: of readable files, and of folders on the way to
        them."""
        return self.may_read(real) or any(entry.leads_to(real) for entry in (*self.read, *self.write))

    @property
    def roots(self) -> list[str]:
        return sorted({entry.root for entry in (*self.read, *self.write)})


def rules(read: Iterable[str], write: Iterable[str], base: str) -> Rules:
    return Rules([pattern(text, base) for text in read], [pattern(text, base) for text in write])


def checked(path: object) -> str:
    """Checks a path from an untrusted peer, and returns it. Raises PathError."""
    if not isinstance(path, str) or not path or len(path.encode("utf-8", "surrogateescape")) > LONGEST_PATH:
        raise PathError(f"not a path of 1 to {LONGEST_PATH} bytes")
    if "\0" in path:
        raise PathError("a path with a NUL byte")
    if not path.startswith("/"):
        raise PathError(f"{path!r} is not absolute")
    return path


def below(path: str, folder: str) -> list[str] | None:
    """Returns the names that lead from the folder to the path; None if the path is not below the folder."""
    if path == folder:
        return []
    prefix = folder if folder.endswith("/") else folder + "/"
    return [name for name in path[len(prefix) :].split("/") if name] if path.startswith(prefix) else None


def hidden(name: str) -> bool:
    """Returns whether globs skip the name.

    Names that begin with two dots are not hidden: a ConfigMap keeps its files in such folders, where `steps.py` is a
    link to `..2026_11_22_10_00_00.1/steps.py`.
    """
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
