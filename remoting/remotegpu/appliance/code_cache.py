"""Device code that sessions have sent, for later sessions of the same tenant: sealed files in memory of this machine.

A worker offers what its client has sent, and asks before it has its client send an image. It believes no content: what
has not the hash that it asked for is as good as nothing. Tenants never see each other's code: an answer would tell what
another one runs.
"""

import fcntl
import os
import re
from collections import OrderedDict
from dataclasses import dataclass
from io import FileIO
from typing import Final

# One tenant leaves something to others.
_TENANTS_PART: Final = 0.5
# Each keeps a descriptor open.
_MOST_FILES: Final = 2048
_SEALS: Final = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
# SHA-256 in hexadecimal digits.
_HASH: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class _Image:
    file: FileIO
    size: int


class CodeCache:
    """Images by tenant and hash, at most `most_bytes`; what nobody asked for longest goes first."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._images: OrderedDict[tuple[str, str], _Image] = OrderedDict()

    @property
    def most_of_tenant(self) -> int:
        """Bytes; larger images are not kept."""
        return int(self._most * _TENANTS_PART)

    @property
    def bytes(self) -> int:
        return sum(image.size for image in self._images.values())

    def offer(self, tenant: str, name: str, file: FileIO) -> None:
        """Keep a file of a worker, which may be under its tenant's control, or close it."""
        size = _sealed_size(file)
        if size is None or not 0 < size <= self.most_of_tenant or not _HASH.fullmatch(name):
            file.close()
            return
        self._drop((tenant, name))
        self._images[tenant, name] = _Image(file, size)
        while self._of(tenant) > self.most_of_tenant:
            self._drop(next(key for key in self._images if key[0] == tenant))
        while self.bytes > self._most or len(self._images) > _MOST_FILES:
            self._drop(next(iter(self._images)))

    def find(self, tenant: str, name: str) -> FileIO | None:
        if (image := self._images.get((tenant, name))) is None:
            return None
        self._images.move_to_end((tenant, name))
        return image.file

    def _of(self, tenant: str) -> int:
        return sum(image.size for (owner, _), image in self._images.items() if owner == tenant)

    def _drop(self, key: tuple[str, str]) -> None:
        if (image := self._images.pop(key, None)) is not None:
            image.file.close()


def _sealed_size(file: FileIO) -> int | None:
    """Bytes of a file that nobody changes any more; None for any other."""
    try:
        seals = fcntl.fcntl(file, fcntl.F_GET_SEALS)
    except OSError:
        return None
    return os.fstat(file.fileno()).st_size if seals & _SEALS == _SEALS else None
