"""Finds files with secrets: the key of this appliance, and the tokens of its callers."""

import contextlib
import shlex
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from remotegpu.appliance.settings import Settings
from remotegpu.rpc.own_token import OwnToken

# Files of an administrator. `appliance init` of earlier releases put them beside the appliance's own.
CA_KEY: Final = "ca.key"
ADMIN_TOKEN: Final = "admin.token"  # noqa: S105 (a name)
# The folder with a pod's own token for the API server.
_SERVICE_ACCOUNT = Path("/var/run/secrets")
# The forbidden permissions. A group may read: a Secret that is mounted in a pod belongs to the pod's group.
_OTHERS = stat.S_IRWXO | stat.S_IWGRP


def secret_files(settings: Settings, own: OwnToken | None) -> list[Path]:
    """Returns the files and folders that no process of a tenant may read.

    They include private files in the folders of key, tokens and certificate, where an administrator's token or the key
    of a CA often is.
    """
    given = [path.absolute() for path in (settings.key, settings.tokens, settings.cert) if path is not None]
    beside = {path for folder in {each.parent for each in given} for path in _private_files(folder)}
    named = [settings.key, settings.tokens, _SERVICE_ACCOUNT, None if own is None else own.folder]
    return sorted(beside | {path.absolute() for path in named if path is not None})


def _private_files(folder: Path) -> Iterator[Path]:
    """Yields the files of a folder that not every user can read."""
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            status = path.lstat()
            if stat.S_ISREG(status.st_mode) and not status.st_mode & stat.S_IROTH:
                yield path


def administrators_folder(folder: Path) -> Path:
    """Returns the folder of the administrator's files that belongs to a folder of the appliance's."""
    folder = folder.absolute()
    return folder.with_name(f"{folder.name}-admin")


def administrators_files(settings: Settings) -> list[Path]:
    """Returns the administrator's files that lie beside the appliance's, where it does not need them."""
    folders = sorted({path.absolute().parent for path in (settings.key, settings.tokens) if path is not None})
    return [folder / name for folder in folders for name in (CA_KEY, ADMIN_TOKEN) if (folder / name).exists()]


def move_away(files: Sequence[Path]) -> str:
    """Returns the command that moves an administrator's files into a folder of their own."""
    to = shlex.quote(str(administrators_folder(files[0].parent)))
    return f"mkdir -p -m 700 {to} && mv {' '.join(shlex.quote(str(file)) for file in files)} {to}/"


def open_to_others(settings: Settings) -> list[Path]:
    """Returns which of key and token file other users of this machine may read or change."""
    found = []
    for path in filter(None, (settings.key, settings.tokens)):
        with contextlib.suppress(OSError):
            if path.stat().st_mode & _OTHERS:
                found.append(path.absolute())
    return found
