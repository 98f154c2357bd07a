"""Tokens of an appliance outside of Kubernetes, from a file with lines `name:token` that is reloaded when it changes.

Lines below `[admin]` are tokens of administrators. Lines below `[user]`, or above both headings, are tokens of users.
"""

import enum
import hashlib
import hmac
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from remotegpu.rpc.own_token import OwnToken

_log = logging.getLogger(__name__)


class Role(enum.Enum):
    ADMIN = "admin"  # sees all leases, and may drain
    USER = "user"  # opens leases, and sees only its own


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of a token: a name and a role."""

    name: str
    role: Role


def parse_tokens(text: str) -> dict[str, Holder]:
    """Parses a token file. Returns holders by the hash of their token, since comparing hashes leaks nothing by timing.

    Raises ValueError, which names the invalid line.
    """
    holders, role = {}, Role.USER
    sections = {f"[{role.value}]": role for role in Role}
    for number, line in enumerate(text.splitlines(), 1):
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        if entry in sections:
            role = sections[entry]
            continue
        name, colon, token = entry.partition(":")
        if entry.startswith("[") or not colon or not name.strip() or not token.strip():
            raise ValueError(f"line {number} is neither name:token nor {' nor '.join(sections)}")
        holders[_digest(token.strip())] = Holder(name.strip(), role)
    return holders


class Tokens(Protocol):
    """Finds the holder of a token. `wanted` and `unknown` are the messages for a missing and an unknown token."""

    wanted: str
    unknown: str

    def holder(self, token: str) -> Holder | None: ...


class UsersToken:
    """The only token of an appliance without --tokens. Its holder is an administrator."""

    def __init__(self, own: OwnToken) -> None:
        self._digest = _digest(own.text)
        self.wanted = f"this appliance serves the user who started it, by a token of {own.folder} on its machine"
        self.unknown = f"{self.wanted}, which is another one; that user's programs there find it if they are given none"

    def holder(self, token: str) -> Holder | None:
        return Holder("", Role.ADMIN) if hmac.compare_digest(self._digest, _digest(token)) else None


class TokenFile:
    """Tokens of a file. If the file cannot be read again, the last valid content stays in use."""

    wanted = "this appliance wants a token"
    unknown = "this appliance does not know the token"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = self._stamp_now()
        self._trouble = ""
        self._holders = parse_tokens(path.read_text())
        if all(holder.role is Role.USER for holder in self._holders.values()):
            _log.warning(
                "%s names no administrator: its tokens open leases and see their own; a name:token below `[admin]` "
                "sees all leases and drains",
                path,
            )

    def holder(self, token: str) -> Holder | None:
        self._reload()
        digest = _digest(token)
        found = None
        for known, holder in self._holders.items():
            if hmac.compare_digest(known, digest):
                found = holder
        return found

    def _reload(self) -> None:
        try:
            stamp = self._stamp_now()
            if stamp != self._stamp:
                self._holders = parse_tokens(self._path.read_text())
                self._stamp = stamp
            self._trouble = ""
        except (OSError, ValueError) as error:
            # Logged once, since every call reads the file, even a stranger's.
            before, self._trouble = self._trouble, str(error)
            if before != self._trouble:
                _log.error("the token file %s is not read again, the old tokens stay: %s", self._path, error)

    def _stamp_now(self) -> tuple[int, int, int]:
        status = self._path.stat()
        return status.st_mtime_ns, status.st_size, status.st_ino


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
