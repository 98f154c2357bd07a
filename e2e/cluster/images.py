"""Container images: built by buildah, kept as archives under a key of what they are made of, loaded into the nodes."""

from __future__ import annotations

import concurrent.futures
import hashlib
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from cluster.control_plane import PROGRAMS
from cluster.node import Node
from cluster.progress import step

HERE = Path(__file__).parent
ARCHIVES = PROGRAMS.parent / "images"
# Of an image in a node's store: the key of the build that it is.
LABEL = "remotegpu.io/e2e-key"
BASE = "localhost/base:1"


@dataclass(frozen=True)
class Image:
    tag: str
    key: str

    @property
    def archive(self) -> Path:
        return ARCHIVES / f"{self.tag.replace('/', '_').replace(':', '_')}.tar"


def key_of(*parts: str | Path) -> str:
    """Of texts and of the contents of files and of all files below folders."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            digest.update(part.encode())
            continue
        files: Iterable[Path] = sorted(part.rglob("*")) if part.is_dir() else [part]
        for file in files:
            if file.is_file() and "__pycache__" not in file.parts:
                digest.update(f"{file.relative_to(part.parent)} {file.stat().st_size} ".encode() + file.read_bytes())
    return digest.hexdigest()


def cached(tag: str, key: str, build: Callable[[], None]) -> Image:
    """The image in an archive; `build` leaves it in buildah's store, and runs where the archive has another key."""
    image = Image(tag, key)
    stamp = image.archive.with_suffix(".key")
    if image.archive.exists() and stamp.exists() and stamp.read_text() == key:
        return image
    ARCHIVES.mkdir(parents=True, exist_ok=True)
    with step(f"image {tag}"):
        build()
        stamp.unlink(missing_ok=True)
        image.archive.unlink(missing_ok=True)
        buildah("push", "--quiet", tag, f"docker-archive:{image.archive}:{tag}")
        stamp.write_text(key)
    return image


def from_scratch(tag: str, content: Path, destination: str, *configuration: str) -> None:
    """One layer: a file, a folder, or a tar archive, which is unpacked."""
    container = buildah("from", "scratch")
    try:
        buildah("add", "--quiet", container, str(content), destination)
        buildah("config", *configuration, container)
        buildah("commit", "--quiet", container, tag)
    finally:
        buildah("rm", container)


def pause() -> Image:
    source = HERE / "pause.c"

    def build() -> None:
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder, "pause")
            subprocess.run(["cc", "-O2", "-Wall", "-static", "-s", "-o", program, source], check=True)
            from_scratch("localhost/pause:1", program, "/pause", "--entrypoint", '["/pause"]', "--user", "65535:65535")

    return cached("localhost/pause:1", key_of(source), build)


def base() -> Image:
    """Debian with Python: what the project's own images stand on here, in place of a registry's."""
    options = [
        "--variant=minbase",
        "--include=python3,python3-venv,ca-certificates",
        # Merged without the package usrmerge, which brings all of Perl.
        "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",
        *(f"--dpkgopt=path-exclude=/usr/share/{folder}/*" for folder in ("doc", "man", "locale")),
    ]

    def build() -> None:
        with tempfile.TemporaryDirectory() as folder:
            archive = Path(folder, "base.tar")
            _run("mmdebstrap", *options, "bookworm", str(archive))
            from_scratch(BASE, archive, "/", "--cmd", "/bin/sh", "--env", "LANG=C.UTF-8")

    image = cached(BASE, key_of(*options), build)
    if BASE not in buildah("images", "--format", "{{.Name}}:{{.Tag}}").split():
        buildah("pull", "--quiet", f"docker-archive:{image.archive}")
    return image


def load(nodes: Iterable[Node], *images: Image) -> None:
    """Into each node that has not got this build of it yet."""
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for loaded in [pool.submit(_load_one, node, images) for node in nodes]:
            loaded.result()


def _load_one(node: Node, images: Iterable[Image]) -> None:
    listing = node.ctr("images", "list")
    for image in images:
        if not any(
            line.startswith(f"{image.tag} ") and f"{LABEL}={image.key}" in line for line in listing.splitlines()
        ):
            node.ctr("images", "import", str(image.archive))
            node.ctr("images", "label", image.tag, f"{LABEL}={image.key}")


def buildah(*arguments: str) -> str:
    return _run("buildah", *arguments)


def _run(*command: str) -> str:
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)}: {result.stderr.strip()[-3000:]}")
    return result.stdout.strip()
