"""An image of llama-server, of what `make llama-cpp` has built: some 700 MB, most of it cuBLAS."""

from __future__ import annotations

import sysconfig
from importlib.metadata import version
from pathlib import Path
from typing import Final

from cluster import images
from cluster.images import BASE, Image
from cluster.lifecycle import NODES
from llama_cpp.decoding import FOLDER, PROGRAMS, program
from support.kubectl import ROOT

TAG: Final = "localhost/llama-server:dev"
_FILE: Final = ROOT / "e2e" / "programs" / "llama-server.Dockerfile"
_CONTEXTS: Final = {
    "llama": PROGRAMS,
    "cuda": Path(sysconfig.get_path("purelib"), "nvidia", "cu13", "lib"),
    "host": Path("/usr/lib/x86_64-linux-gnu"),
}


def load() -> None:
    """Build it if it has changed, and bring it to the nodes."""
    program("llama-server")
    images.load(NODES, _image(images.base()))


def _image(base: Image) -> Image:
    def build() -> None:
        contexts = [f"--build-context={name}={folder}" for name, folder in _CONTEXTS.items()]
        images.buildah(
            *("bud", "--quiet", "--isolation=chroot", f"--tag={TAG}", f"--build-arg=BASE={BASE}"),
            *(*contexts, f"--file={_FILE}", str(_FILE.parent)),
        )

    built = (FOLDER / ".built").read_text()
    return images.cached(TAG, images.key_of(base.key, _FILE, built, version("nvidia-cublas")), build)
