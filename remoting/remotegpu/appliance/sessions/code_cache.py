"""A cache of device code that sessions have sent, for later sessions of the same tenant, in sealed memory files.

A worker offers the code that its client has sent, and asks the cache before its client sends an image. The worker
checks the hash of each answer, so wrong content has no effect. A tenant gets no code of other tenants, since a hit
would reveal which programs they run. The exception is one tenant that the administrator names as public.

An image comes through a pipe into a file that the appliance creates. A file of the worker would be charged to its lease
as long as the cache has it.
"""

import asyncio
import contextlib
import fcntl
import os
import re
import stat
from collections import OrderedDict
from dataclasses import dataclass
from io import FileIO
from typing import Final

from remotegpu.appliance.machine.shortage import code_files

# The part of the cache that one tenant may use.
_TENANTS_PART: Final = 0.5
# Each image needs a descriptor, and two while it arrives.
_MOST_FILES: Final = 1024
_ARRIVES_WITHIN: Final = 10.0  # seconds
_SEALS: Final = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
# SHA-256 in hexadecimal digits.
_HASH: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(slots=True)
class _Image:
    size: int
    file: FileIO | None = None  # None: the image is still arriving
    arrival: asyncio.Task[FileIO | None] | None = None


class CodeCache:
    """Images by tenant and hash, at most `most_bytes` together. The least recently used image is evicted first.

    `public` is the tenant whose images all tenants may use; None: no tenant.
    """

    def __init__(self, most_bytes: int, public: str | None = None) -> None:
        self._most = most_bytes
        self._most_files = min(_MOST_FILES, code_files())
        self._public = public
        self._images: OrderedDict[tuple[str, str], _Image] = OrderedDict()

    @property
    def most_of_tenant(self) -> int:
        """The limit in bytes for one tenant. A larger image is not cached."""
        return int(self._most * _TENANTS_PART)

    @property
    def bytes(self) -> int:
        return sum(image.size for image in self._images.values())

    async def offer(self, tenant: str, name: str, size: int, pipe: FileIO) -> None:
        """Caches an image from the pipe of a worker. Nothing is trusted, since a tenant may control the worker."""
        with contextlib.closing(pipe):
            is_image = 0 < size <= self.most_of_tenant and _HASH.fullmatch(name)
            if not is_image or (tenant, name) in self._images or not stat.S_ISFIFO(os.fstat(pipe.fileno()).st_mode):
                return
            image = self._images[tenant, name] = _Image(size)
            self._make_room(tenant)
            image.arrival = asyncio.create_task(_received(pipe, size))
            try:
                await asyncio.wait([image.arrival])
            except asyncio.CancelledError:
                image.arrival.cancel()
                raise
            if image.arrival.cancelled():
                return  # the image was evicted meanwhile
            image.file, image.arrival = image.arrival.result(), None
            if image.file is None:
                self._drop((tenant, name))

    def find(self, tenant: str, name: str) -> FileIO | None:
        for owner in (tenant, self._public):
            if owner is not None and (image := self._images.get((owner, name))) is not None and image.file is not None:
                self._images.move_to_end((owner, name))
                return image.file
        return None

    def close(self) -> None:
        for key in list(self._images):
            self._drop(key)

    def _make_room(self, tenant: str) -> None:
        own = [(key, image) for key, image in self._images.items() if key[0] == tenant]
        excess, files = sum(image.size for _, image in own) - self.most_of_tenant, len(own)
        for key, image in own:
            if excess <= 0 and files <= self._most_files * _TENANTS_PART:
                break
            self._drop(key)
            excess, files = excess - image.size, files - 1
        while self.bytes > self._most or len(self._images) > self._most_files:
            self._drop(next(iter(self._images)))

    def _drop(self, key: tuple[str, str]) -> None:
        if (image := self._images.pop(key, None)) is None:
            return
        if image.file is not None:
            image.file.close()
        if image.arrival is not None:
            # Stops the arrival: the image is no longer counted.
            image.arrival.cancel()


async def _received(pipe: FileIO, size: int) -> FileIO | None:
    """Reads a pipe into a sealed file. Returns None if fewer than `size` bytes arrive in time."""
    file = FileIO(os.memfd_create("remotegpu-code", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "r+b")
    os.set_blocking(pipe.fileno(), False)
    try:
        async with asyncio.timeout(_ARRIVES_WITHIN):
            while size:
                try:
                    moved = os.splice(pipe.fileno(), file.fileno(), size)
                except BlockingIOError:
                    await _readable(pipe)
                    continue
                if not moved:
                    raise EOFError
                size -= moved
    except (TimeoutError, EOFError):
        file.close()
        return None
    except BaseException:
        file.close()
        raise
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
    return file


async def _readable(file: FileIO) -> None:
    loop, is_readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(file.fileno(), is_readable.set)
    try:
        await is_readable.wait()
    finally:
        loop.remove_reader(file.fileno())
