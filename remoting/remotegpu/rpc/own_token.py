"""The token of an appliance without --tokens.

The appliance creates the token and stores it in its user's runtime folder, in a file named by the address. There the
programs of the same user find it. `remotegpu-run` uses the same files (`remoting/run/src/own_token.rs`).
"""

import os
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path

from remotegpu.api import addresses

_BYTES = 32
_LONGEST = 256


class NoPlaceError(Exception):
    """Raised if there is no private folder for the token. The message has the remedy."""


@dataclass(frozen=True, slots=True)
class OwnToken:
    folder: Path  # private to this user, and hidden from sessions, which may have the same uid
    text: str

    def keep(self, host: str, port: int) -> Path:
        """Stores the token in the file for this address, and returns the file's path. Raises OSError."""
        path = self.folder / addresses.joined(host, port)
        new = path.with_name(f".{path.name}.{os.getpid()}")
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(self.text + "\n")
        return new.rename(path)

    def forget(self, path: Path) -> None:
        """Removes the file, unless it has the token of another appliance now."""
        if _read(path) == self.text:
            path.unlink(missing_ok=True)


def make() -> OwnToken:
    """Creates a new token. Raises NoPlaceError."""
    for folder in _folders():
        try:
            folder.mkdir(0o700, exist_ok=True)
        except OSError:
            continue
        if _private(folder):
            return OwnToken(folder, secrets.token_hex(_BYTES))
    tried = " nor ".join(map(str, _folders()))
    raise NoPlaceError(
        f"the token of this appliance has no place: neither {tried} is a folder of this user alone; set "
        "XDG_RUNTIME_DIR to one, or give --tokens FILE"
    )


def again(host: str, port: int) -> OwnToken | None:
    """Returns the token that is stored for this address; None if there is none."""
    for folder in filter(_private, _folders()):
        if text := _read(folder / addresses.joined(host, port)):
            return OwnToken(folder, text)
    return None


def find(host: str, port: int) -> tuple[str, str] | None:
    """Returns the host to connect to and the token of this user's appliance at `host` and `port`; None if unknown.

    `localhost` becomes the address on which the appliance listens, since another process may listen on another one.
    """
    if "/" in host:
        return None
    for folder in filter(_private, _folders()):
        named = {host: folder / addresses.joined(host, port)}
        if addresses.is_loopback(host):
            ending = f":{port}"
            named |= {each.name.removesuffix(ending): each for each in sorted(folder.glob(f"[!.]*{ending}"))}
        for listens, path in named.items():
            if text := _read(path):
                here = listens.strip("[]")
                return (here if host == "localhost" and addresses.is_loopback(here) else host), text
    return None


def _folders() -> list[Path]:
    """Returns possible folders. There are several, since su, cron and services have different environments."""
    uid = os.geteuid()
    runtime = [Path(given) for given in (os.environ.get("XDG_RUNTIME_DIR", ""), f"/run/user/{uid}") if given]
    found = [each / "remotegpu" for each in runtime if _owned(each)]
    # Used only if they are private; in /run only root can create one.
    others = [Path(folder) / f"remotegpu-{uid}" for folder in ("/run", "/tmp")]  # noqa: S108
    return list(dict.fromkeys((*found, *others)))


def _owned(folder: Path) -> bool:
    try:
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def _private(folder: Path) -> bool:
    return _owned(folder) and not folder.lstat().st_mode & 0o077


def _read(path: Path) -> str:
    """Returns the text of a file in a private folder; empty if there is no file."""
    try:
        with path.open() as file:
            return file.read(_LONGEST).strip()
    except OSError:
        return ""
