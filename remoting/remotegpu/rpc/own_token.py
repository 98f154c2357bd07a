"""The token of an appliance without --tokens.

The appliance makes it and leaves it in a file of its user's runtime folder, named by address, where that user's
programs find it. `remotegpu-run` finds it alike (`remoting/run/src/own_token.rs`).
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
    """There is no folder that only this user can use; the message says what to do."""


@dataclass(frozen=True, slots=True)
class OwnToken:
    folder: Path  # closed to other users, and to sessions, which may have our user id
    text: str

    def keep(self, host: str, port: int) -> Path:
        """Stores the token where programs look for this address."""
        path = self.folder / addresses.joined(host, port)
        new = path.with_name(f".{path.name}.{os.getpid()}")
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(self.text + "\n")
        return new.rename(path)

    def forget(self, path: Path) -> None:
        """Removes the file, unless another appliance has the address now."""
        if _read(path) == self.text:
            path.unlink(missing_ok=True)


def make() -> OwnToken:
    """Makes a new token."""
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
    """Returns the token that is kept for this address; None if there is none."""
    for folder in filter(_private, _folders()):
        if text := _read(folder / addresses.joined(host, port)):
            return OwnToken(folder, text)
    return None


def find(host: str, port: int) -> tuple[str, str] | None:
    """Returns where to connect and the token, if this user's appliance has one for `host` and `port`.

    `localhost` becomes the address that the appliance listens on: another process may listen on another one.
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
    """Returns possible folders. The user's programs may have other environments: by su, by cron, as a service."""
    uid = os.geteuid()
    runtime = [Path(given) for given in (os.environ.get("XDG_RUNTIME_DIR", ""), f"/run/user/{uid}") if given]
    found = [each / "remotegpu" for each in runtime if _owned(each)]
    # Used if they are ours alone; in /run only root makes one.
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
    """Returns the file's text; empty if there is none. The folder, with its files, is ours alone."""
    try:
        with path.open() as file:
            return file.read(_LONGEST).strip()
    except OSError:
        return ""
