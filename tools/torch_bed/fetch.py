"""Fetches a file from one of several mirrors: continues after an interruption, and drops a file with a wrong sum."""

from __future__ import annotations

import hashlib
import http.client
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from torch_bed.packages import Package

TRIES: Final = 4
SECONDS: Final = 60
BLOCK: Final = 1 << 20


class NotFetchedError(Exception):
    """No mirror has the file, or it could not be fetched completely; the message names the file."""


def apt(*command: str) -> str:
    """Returns the output of one of apt's programs; "" if apt is missing or fails."""
    if shutil.which(command[0]) is None:
        return ""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


def sources() -> str:
    """Returns the addresses of the mirrors in apt's sources."""
    return apt("apt-get", "indextargets", "--format", "$(REPO_URI)")


def opener() -> urllib.request.OpenerDirector:
    """Makes an HTTP client with the proxies of the environment, as apt does; otherwise with those of apt's settings."""
    proxies = urllib.request.getproxies()
    for scheme in ("http", "https"):
        said = apt("apt-config", "dump", "--format", "%v", f"Acquire::{scheme}::Proxy").strip()
        if said and said != "DIRECT":
            proxies.setdefault(scheme, said)
    return urllib.request.build_opener(urllib.request.ProxyHandler(proxies))


def sum_of(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def get(address: str, part: Path, size: int, using: urllib.request.OpenerDirector, came: Callable[[int], None]) -> None:
    """Appends the missing rest of the file to `part`.

    If the mirror cannot send the rest only, fetches the whole file.
    """
    begun = part.stat().st_size if part.exists() else 0
    if begun >= size:
        return
    request = urllib.request.Request(address, headers={"Range": f"bytes={begun}-"} if begun else {})
    with using.open(request, timeout=SECONDS) as answer:
        goes_on = begun and answer.status == http.client.PARTIAL_CONTENT
        with part.open("ab" if goes_on else "wb") as file:
            while block := answer.read(BLOCK):
                file.write(block)
                came(len(block))


def fetch(
    package: Package,
    mirrors: Sequence[str],
    folder: Path,
    using: urllib.request.OpenerDirector,
    came: Callable[[int], None] = lambda _: None,
) -> Path:
    """Fetches the package's file into `folder`, and checks it. Returns its path. Raises NotFetchedError."""
    file, part = folder / package.stored, folder / f"{package.stored}.part"
    if file.exists():
        return file
    why = "no mirror is known"
    for mirror in mirrors:
        for attempt in range(TRIES):
            try:
                get(f"{mirror}/{package.path}", part, package.size, using, came)
            except urllib.error.HTTPError as error:
                why = f"{error.code} {error.reason}"
                if error.code < http.client.INTERNAL_SERVER_ERROR:
                    break
            except (OSError, http.client.HTTPException) as error:
                why = str(error)
            else:
                if part.stat().st_size == package.size:
                    if sum_of(part) == package.sha256:
                        return part.rename(file)
                    why = "its SHA-256 is not the list's"
                    part.unlink()
                elif part.stat().st_size > package.size:
                    why = "it is longer than the list says"
                    part.unlink()
                else:
                    why = "it came in part"
            # A busy mirror gets some time to recover.
            time.sleep(attempt)
    raise NotFetchedError(f"{package.name} {package.version}: no mirror has it ({package.path}: {why})")
