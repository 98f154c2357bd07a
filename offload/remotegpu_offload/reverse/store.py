"""The client's files on disk: cached pages by their SHA-256, and the permissions of each application."""

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from remotegpu_offload.reverse.manifest import Permissions


def default_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "remotegpu", "apps")


class WrongPageError(Exception):
    """The received page has another hash than the requested one."""


class Pages:
    """A cache folder with files that are named by their hashes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "pages"

    def path(self, sha256: str) -> Path:
        return self.folder / sha256[:2] / sha256

    def __contains__(self, sha256: str) -> bool:
        return self.path(sha256).is_file()

    @contextlib.contextmanager
    def adding(self, sha256: str) -> Iterator[IO[bytes]]:
        """Opens a temporary file for a page. At the end moves it to its place if its hash is right, and removes it
        otherwise.

        Raises WrongPageError.
        """
        place = self.path(sha256)
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=place.parent, prefix=".", delete=False) as file:
            try:
                yield file.file
                file.flush()
                file.seek(0)
                found = hashlib.file_digest(file, "sha256").hexdigest()
                if found != sha256:
                    raise WrongPageError(found)
                Path(file.name).chmod(0o444)
                Path(file.name).replace(place)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise


@dataclass(frozen=True, slots=True)
class Known:
    """An application that was opened before: the signer's key, the latest version, and the granted permissions."""

    key: str
    issued: int
    granted: Permissions


class Register:
    """The known applications, by "host:port/name", in a file that users can read and edit."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "known.json"

    def get(self, origin: str) -> Known | None:
        """Returns the known application of this origin, or None. Raises ValueError if the file is damaged."""
        found = self._all().get(origin)
        if found is None:
            return None
        return Known(str(found["key"]), int(found["issued"]), Permissions.from_object(found["granted"]))

    def put(self, origin: str, known: Known) -> None:
        entry = {"key": known.key, "issued": known.issued, "granted": known.granted.to_object()}
        whole = json.dumps({**self._all(), origin: entry}, indent=1, sort_keys=True)
        self.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile("w", dir=self.file.parent, prefix=".known-", delete=False) as file:
            file.write(whole + "\n")
        Path(file.name).replace(self.file)

    def _all(self) -> dict[str, Any]:
        try:
            stored = json.loads(self.file.read_text())
        except FileNotFoundError:
            return {}
        if not isinstance(stored, dict):
            raise ValueError(f"{self.file} is damaged: remove it, and applications are asked about again")
        return stored
