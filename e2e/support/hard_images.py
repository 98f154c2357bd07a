"""Builds the images of examples/02-images offline: programs compiled here replace the compilers' stages."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from cluster import images
from cluster.images import BASE, Image
from cluster.lifecycle import NODES
from support.kubectl import ROOT

EXAMPLE: Final = ROOT / "examples" / "02-images"
GLIBC: Final = ("ld-library-path", "ld-so-cache", "no-lib64", "linked-lib64")
MUSL: Final = "localhost/remotegpu-images:musl"
_LOADS: Final = ROOT / "e2e" / "programs" / "loads.c"
# Debian's package musl; the folder of the loader in an image.
_MUSL_LOADER: Final = Path("/lib/x86_64-linux-musl/libc.so")


def tag(target: str) -> str:
    return f"localhost/remotegpu-images:{target}"


def load() -> None:
    """Build what has changed, and bring it to the nodes."""
    base = images.base()
    images.load(NODES, *(_glibc(target, base) for target in GLIBC), _musl())


def _glibc(target: str, base: Image) -> Image:
    def build() -> None:
        with tempfile.TemporaryDirectory() as folder:
            decoy = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", f"{folder}/libcuda.so.1"]
            subprocess.run(["cc", *decoy, EXAMPLE / "decoy.c"], check=True)
            images.buildah(
                *("bud", "--quiet", "--isolation=chroot", f"--target={target}", f"--tag={tag(target)}"),
                *(f"--build-arg=BASE={BASE}", f"--build-context=decoy={folder}", str(EXAMPLE)),
            )

    return images.cached(tag(target), images.key_of(base.key, target, EXAMPLE), build)


def _musl() -> Image:
    """Builds an image with musl's loader and a program linked for it: without a registry there is no Alpine."""

    def build() -> None:
        with tempfile.TemporaryDirectory() as folder:
            content = Path(folder)
            (content / "lib").mkdir()
            shutil.copy(_MUSL_LOADER, content / "lib" / "ld-musl-x86_64.so.1")
            zig = [sys.executable, "-m", "ziglang", "cc", "-target", "x86_64-linux-musl", "-dynamic", "-s"]
            subprocess.run([*zig, "-o", content / "loads", _LOADS], check=True)
            images.from_scratch(MUSL, content, "/", "--cmd", "/loads", "--user", "1000:1000")

    return images.cached(MUSL, images.key_of(_LOADS, _MUSL_LOADER), build)
