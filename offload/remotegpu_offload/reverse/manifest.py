"""A server's description of an application: its files with their hashes, and its permissions. Pure.

A manifest is JSON in a fixed form, and the signature covers these very bytes. A manifest comes from another machine, so
a reader must not trust it before `parse` has checked it.
"""

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from remotegpu_offload.reverse.ed25519 import KEY_BYTES, verify
from remotegpu_offload.reverse.errors import ReverseError

FORMAT: Final = 1
LARGEST_MANIFEST: Final = 16 << 20
MOST_FILES: Final = 100_000
LARGEST_FILE: Final = 64 << 30
KEY_PREFIX: Final = "ed25519:"
NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9._]{0,61}[a-z0-9])?")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class File:
    sha256: str
    size: int  # bytes
    # Files that this file imports, found without running it. They are fetched together with it.
    imports: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Permissions:
    """The permissions of an application on the client's machine.

    Globs are relative to the folder where it is opened.
    """

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    env: tuple[str, ...] = ()

    def within(self, granted: "Permissions") -> bool:
        return all(set(getattr(self, kind)) <= set(getattr(granted, kind)) for kind in self.__slots__)

    def to_object(self) -> dict[str, list[str]]:
        return {kind: list(getattr(self, kind)) for kind in self.__slots__}

    @classmethod
    def from_object(cls, stored: Any) -> "Permissions":
        known = _object(stored, "permissions")
        return cls(**{kind: _texts(known.get(kind, []), f"permissions.{kind}") for kind in cls.__slots__})


@dataclass(frozen=True, slots=True)
class Manifest:
    name: str
    entry: str  # the file that is run
    python: str  # the lowest version, such as "3.11"
    issued: int  # seconds since 1970; the client refuses a manifest that is older than one it has seen
    permissions: Permissions = field(default_factory=Permissions)
    requirements: tuple[str, ...] = ()
    files: Mapping[str, File] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Returns the canonical form of this manifest, so that its hash identifies it."""
        files = {
            path: {"sha256": file.sha256, "size": file.size, "imports": list(file.imports)}
            for path, file in self.files.items()
        }
        whole = {
            "format": FORMAT,
            "name": self.name,
            "entry": self.entry,
            "python": self.python,
            "issued": self.issued,
            "permissions": self.permissions.to_object(),
            "requirements": list(self.requirements),
            "files": files,
        }
        return json.dumps(whole, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.to_bytes()).hexdigest()


@dataclass(frozen=True, slots=True)
class Envelope:
    """A manifest with its signature and the signer's public key."""

    manifest: bytes
    key: bytes
    signature: bytes

    def to_bytes(self) -> bytes:
        texts = {name: base64.b64encode(getattr(self, name)).decode() for name in self.__slots__}
        return json.dumps(texts).encode()


def key_text(key: bytes) -> str:
    """Formats a public key for users to compare: "ed25519:…" with 43 characters."""
    return KEY_PREFIX + base64.b64encode(key).decode().rstrip("=")


def parse_key(text: str) -> bytes:
    """Parses the text of a public key. Raises ReverseError."""
    encoded = text.removeprefix(KEY_PREFIX)
    try:
        key = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except (ValueError, binascii.Error):
        key = b""
    if len(key) != KEY_BYTES or encoded == text:
        raise ReverseError(f"{text!r} is no key: write it as `remotegpu offload serve` prints it, {KEY_PREFIX}…")
    return key


def opened(content: bytes) -> tuple[Manifest, bytes]:
    """Returns the manifest of an envelope, and the public key of its signature. Raises ReverseError for a wrong
    signature.

    The caller must decide whether to trust the key.
    """
    try:
        texts = _object(json.loads(content), "the envelope")
        envelope = Envelope(**{name: base64.b64decode(texts[name], validate=True) for name in Envelope.__slots__})
    except (ValueError, KeyError, TypeError, RecursionError) as problem:
        raise ReverseError(f"the server's answer is no signed manifest: {problem}; is it a remotegpu server?") from None
    if not verify(envelope.key, envelope.manifest, envelope.signature):
        raise ReverseError(
            "the manifest's signature is wrong: it was changed after it was signed, by the server or on the way; do "
            "not run it, and tell the server's administrator"
        )
    return parse(envelope.manifest), envelope.key


def parse(content: bytes) -> Manifest:
    """Parses and checks a manifest. Raises ReverseError."""
    try:
        whole = _object(json.loads(content), "the manifest")
    except (ValueError, RecursionError) as problem:
        raise _wrong(f"it is no JSON: {problem}") from None
    if whole.get("format") != FORMAT:
        raise _wrong(f"its format is {whole.get('format')!r}, known is {FORMAT}: install the server's version here")
    listed = _object(whole.get("files"), "files")
    if len(listed) > MOST_FILES:
        raise _wrong(f"it has {len(listed)} files, the most are {MOST_FILES}")
    files = {_path(path): _file(path, entry) for path, entry in listed.items()}
    _refuse_files_as_folders(files)
    name, entry = _text(whole.get("name"), "name"), _text(whole.get("entry"), "entry")
    if not NAME.fullmatch(name):
        raise _wrong(f"{name!r} is no name")
    if entry not in files:
        raise _wrong(f"its entry {entry!r} is none of its files")
    for path, file in files.items():
        missing = [each for each in file.imports if each not in files]
        if missing:
            raise _wrong(f"{path} imports {missing[0]!r}, which is none of its files")
    issued = whole.get("issued")
    if not isinstance(issued, int) or isinstance(issued, bool) or issued < 0:
        raise _wrong(f"issued {issued!r} is no time")
    python = _text(whole.get("python"), "python")
    if not re.fullmatch(r"3\.\d{1,3}", python):
        raise _wrong(f"{python!r} is no version of Python")
    return Manifest(
        name=name,
        entry=entry,
        python=python,
        issued=issued,
        permissions=Permissions.from_object(whole.get("permissions")),
        requirements=_texts(whole.get("requirements"), "requirements"),
        files=files,
    )


def closure(files: Mapping[str, File], start: Iterable[str]) -> list[str]:
    """Returns the files and, transitively, the files that they import, each once, in the order of use."""
    found: dict[str, None] = {}
    waiting = list(start)[::-1]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found[path] = None
            waiting += reversed(files[path].imports)
    return list(found)


def _file(path: str, stored: Any) -> File:
    entry = _object(stored, path)
    digest, size = _text(entry.get("sha256"), f"sha256 of {path}"), entry.get("size")
    if not _SHA256.fullmatch(digest):
        raise _wrong(f"{digest!r} of {path} is no SHA-256")
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= LARGEST_FILE:
        raise _wrong(f"{size!r} of {path} is no size")
    return File(digest, size, _texts(entry.get("imports", []), f"imports of {path}"))


def _path(path: str) -> str:
    """Returns the path. Raises ReverseError if it could leave the application's folder, or is invalid on other
    systems."""
    parts = path.split("/")
    strange = any(part in ("", ".", "..") or part.endswith((".", " ")) for part in parts)
    if strange or not path.isprintable() or any(character in path for character in '\\:*?"<>|') or len(path) > 1024:
        raise _wrong(f"{path!r} is no path inside of an application")
    return path


def _refuse_files_as_folders(files: Mapping[str, File]) -> None:
    for path in files:
        parent = path.rpartition("/")[0]
        while parent:
            if parent in files:
                raise _wrong(f"{parent!r} is a file and a folder")
            parent = parent.rpartition("/")[0]


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(f"{what} is no object")
    return value


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str) or not value:
        raise _wrong(f"{what} is missing")
    return _shown(value, what)


def _texts(value: Any, what: str) -> tuple[str, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str) or not all(isinstance(one, str) for one in value):
        raise _wrong(f"{what} is no list of texts")
    return tuple(_shown(one, what) for one in value)


def _shown(text: str, what: str) -> str:
    """Returns the text. Raises ReverseError if it has characters that could make a terminal show something else."""
    if not text.isprintable():
        raise _wrong(f"{what} has characters that cannot be shown: {text!r}")
    return text


def _wrong(why: str) -> ReverseError:
    return ReverseError(f"the server's manifest makes no sense: {why}")
