"""Container images: built by buildah, kept in folders under a key of what they are made of, loaded into the nodes."""

from __future__ import annotations

import concurrent.futures
import contextlib
import fcntl
import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from cluster.control_plane import PROGRAMS
from cluster.node import Node
from cluster.progress import step

HERE = Path(__file__).parent
STORE = PROGRAMS.parent / "images"
BASE = "localhost/base:1"


@dataclass(frozen=True)
class Image:
    tag: str
    key: str

    @property
    def folder(self) -> Path:
        """The folder that `buildah push … dir:` writes: manifest.json, and each blob in a file named by its digest."""
        return STORE / self.tag.replace("/", "_").replace(":", "_")

    @property
    def bill(self) -> Path:
        """The image's bill of materials: see `contents`."""
        return self.folder.with_suffix(".cdx.json")

    @property
    def manifest(self) -> bytes:
        return (self.folder / "manifest.json").read_bytes()

    @property
    def digest(self) -> str:
        return f"sha256:{hashlib.sha256(self.manifest).hexdigest()}"

    def blobs(self) -> dict[str, Path]:
        """Configuration and layers by digest."""
        manifest = json.loads(self.manifest)
        digests = [blob["digest"] for blob in (manifest["config"], *manifest["layers"])]
        return {digest: self.folder / digest.removeprefix("sha256:") for digest in digests}


def key_of(*parts: str | Path) -> str:
    """Returns a digest of the texts, and of the contents of the files and of all files below the folders."""
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
    """Returns the image in its folder. If the folder has another key, `build` first makes it in buildah's store."""
    image = Image(tag, key)
    stamp = STORE / f"{image.folder.name}.key"
    STORE.mkdir(parents=True, exist_ok=True)
    with (STORE / ".lock").open("w") as lock:
        # If another process has built the same meanwhile, its image is used.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if image.folder.exists() and stamp.exists() and stamp.read_text() == key:
            return image
        with step(f"image {tag}"):
            build()
            stamp.unlink(missing_ok=True)
            shutil.rmtree(image.folder, ignore_errors=True)
            # Compressing the layers takes longer than writing them.
            buildah("push", "--quiet", "--disable-compression", "--format=oci", tag, f"dir:{image.folder}")
            stamp.write_text(key)
    return image


def from_scratch(tag: str, content: Path, destination: str, *configuration: str) -> None:
    """Builds an image of one layer: a file, a folder, or a tar archive, which is unpacked."""
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
    """Returns Debian with Python: the base of the project's images here, in place of one from a registry."""
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
    pull(image)
    return image


def pull(image: Image) -> None:
    """Loads the image into buildah's store, where others are built from it, unless it is there."""
    if image.tag not in buildah("images", "--format", "{{.Name}}:{{.Tag}}").split():
        identity = buildah("pull", "--quiet", f"dir:{image.folder}")
        buildah("tag", identity, image.tag)


def load(nodes: Iterable[Node], *images: Image) -> None:
    """Loads the images into each node that does not have this build yet."""
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for loaded in [pool.submit(_load_one, node, images) for node in nodes]:
            loaded.result()


def _load_one(node: Node, images: Iterable[Image]) -> None:
    listing = node.ctr("images", "list").splitlines()
    for image in images:
        if not any(line.startswith(f"{image.tag} ") and image.digest in line for line in listing):
            _import(node, image, set(node.ctr("content", "list", "--quiet").split()))


def _import(node: Node, image: Image, known: set[str]) -> None:
    """Sends the node an archive with the blobs that it does not know: mostly a small layer on top of large ones."""
    command = node.inside("ctr", "--namespace=k8s.io", "images", "import", "-")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stderr
        # If the import ends early, its own message says more than the broken pipe.
        with contextlib.suppress(BrokenPipeError), process.stdin:
            write_archive(image, process.stdin, image.tag, known)
        error = process.stderr.read().decode().strip()
    if process.returncode:
        raise RuntimeError(f"{image.tag} into {node.name}: {error}")


def write_archive(image: Image, file: IO[bytes], name: str, known: Collection[str] = ()) -> None:
    """Writes an OCI archive of the image under this name, without the blobs that its reader knows."""
    with tarfile.open(mode="w|", fileobj=file) as tar:
        _add(tar, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
        _add(tar, "index.json", json.dumps(_index(image, name)).encode())
        _add(tar, _blob(image.digest), image.manifest)
        for digest, blob in image.blobs().items():
            if digest not in known:
                tar.add(blob, _blob(digest))


def _index(image: Image, name: str) -> dict[str, object]:
    return {
        "schemaVersion": 2,
        "manifests": [
            {
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "digest": image.digest,
                "size": len(image.manifest),
                "annotations": {"io.containerd.image.name": name},
            }
        ],
    }


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))


def buildah(*arguments: str) -> str:
    """Runs buildah with a store in target/, which is deleted together with target/."""
    store = PROGRAMS.parent / "buildah"
    command = ("buildah", f"--root={store / 'root'}", f"--runroot={store / 'run'}", *arguments)
    try:
        return _run(*command)
    except RuntimeError as error:
        # buildah says no more than this if the writer of a layer ended; seen once, and a full disk is one cause.
        if "closed pipe" not in str(error):
            raise
        places = (PROGRAMS.parent, Path(tempfile.gettempdir()), Path("/var/tmp"))
        free = ", ".join(f"{place} {shutil.disk_usage(place).free >> 20} MiB" for place in places)
        print(f"{error}\nFree on disk: {free}. Once more.", file=sys.stderr, flush=True)
        return _run(*command)


def _run(*command: str) -> str:
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)}: {result.stderr.strip()[-3000:]}")
    return result.stdout.strip()
