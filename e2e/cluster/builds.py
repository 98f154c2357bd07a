"""The images of the project and of its examples, built offline from what lies in this clone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

from cluster import contents, images
from cluster.control_plane import PROGRAMS
from cluster.images import BASE, Image
from cluster.progress import step

ROOT = Path(__file__).parents[2]
DIST = Path(os.environ.get("REMOTEGPU_DIST", ROOT / "target" / "dist"))
WHEELS = PROGRAMS.parent / "wheels"
PARTS = ("operator", "appliance", "deviceplugin")
# Packages of the Rust workspace in each image that has a bill of materials; the operator has scripts instead.
LINKED = {
    "localhost/remotegpu-operator:dev": (),
    "localhost/remotegpu-appliance:dev": ("remotegpu-worker", "remotegpu-softgpu", "remotegpu-sandbox"),
    "localhost/remotegpu-deviceplugin:dev": ("remotegpu-client", "remotegpu-smi", "remotegpu-connect"),
}
# Files that the Dockerfile copies; it takes no Rust sources, only what `make build` has made of them.
SOURCES = (
    "operator",
    "deviceplugin",
    "remoting/remotegpu",
    "offload/remotegpu_offload",
    "Dockerfile",
    "pyproject.toml",
)
EXAMPLES = ROOT / "examples"


def all_images() -> list[Image]:
    if not DIST.exists():
        raise RuntimeError(f"the Rust programs are not built: {DIST} is missing; run `make build` first")
    base = images.base()
    parts = [_part(target, base) for target in PARTS]
    return [base, *parts, _environment(base, parts[PARTS.index("appliance")]), _examples(base)]


def write_bills(built: Iterable[Image]) -> None:
    """Writes each image's bill of materials next to it; RuntimeError if a file in an image belongs to no package."""
    for image in built:
        if image.tag not in LINKED:
            continue
        found = contents.read(image)
        if found.unowned:
            raise RuntimeError(f"files of no package in {image.tag}: {', '.join(found.unowned[:10])}")
        linked = contents.crates(LINKED[image.tag]) if LINKED[image.tag] else contents.scripts()
        image.bill.write_text(contents.bill(found, linked))


def _part(target: str, base: Image) -> Image:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheels = _wheels(
        "parts",
        [
            *project["project"]["dependencies"],
            *project["project"]["optional-dependencies"]["kubernetes"],
            *project["project"]["optional-dependencies"]["offload"],
            *project["build-system"]["requires"],
        ],
    )
    tag = f"localhost/remotegpu-{target}:dev"
    copied = ("dashboard",) if target == "operator" else ("bin", "client", "dashboard", "frameworks", "native", "pod")
    native = tuple(DIST / part for part in copied)
    key = images.key_of(base.key, target, *(ROOT / source for source in SOURCES), *native)
    contexts = {"wheels": wheels, "native": DIST}
    # The parts have stages in common, which layers keep from one to the next.
    return images.cached(tag, key, lambda: _bud(tag, ROOT, contexts, f"--target={target}", "--layers"))


def _examples(base: Image) -> Image:
    requirements, dockerfile = EXAMPLES / "requirements.txt", EXAMPLES / "Dockerfile"
    wheels = _wheels("examples", requirements.read_text().split())
    tag = "localhost/remotegpu-examples:dev"
    key = images.key_of(base.key, requirements, dockerfile)
    return images.cached(tag, key, lambda: _bud(tag, EXAMPLES, {"wheels": wheels}))


def _environment(base: Image, appliance: Image) -> Image:
    """The appliance's image of example 9, with a Python that offload sessions run in."""
    folder = EXAMPLES / "09-offload"
    requirements, dockerfile = folder / "requirements.txt", folder / "Dockerfile"
    wheels = _wheels("environment", requirements.read_text().split())
    tag = "localhost/remotegpu-appliance-sklearn:dev"
    key = images.key_of(base.key, appliance.key, requirements, dockerfile)
    given = f"--build-arg=APPLIANCE={appliance.tag}"

    def build() -> None:
        images.pull(appliance)
        _bud(tag, folder, {"wheels": wheels}, given)

    return images.cached(tag, key, build)


def _bud(tag: str, context: Path, contexts: dict[str, Path], *more: str) -> None:
    images.buildah(
        *("bud", "--quiet", "--isolation=chroot", "--network=host", f"--tag={tag}"),
        *(f"--build-arg=BASE={BASE}", "--build-arg=PIP_NO_INDEX=1"),
        *(f"--build-context={name}={folder}" for name, folder in contexts.items()),
        *more,
        str(context),
    )


def _wheels(name: str, requirements: Iterable[str]) -> Path:
    """Returns a folder with the packages and their dependencies, downloaded again when the requirements change."""
    wanted = sorted(requirements)
    folder = WHEELS / name
    stamp = folder / ".requirements"
    if not stamp.exists() or stamp.read_text().splitlines() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        with step(f"Python packages for the images: {name}"):
            # The base image has Debian's Python, whose minor version wheels are made for.
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
            target = ["--only-binary=:all:", "--python-version=3.11", f"--dest={folder}"]
            subprocess.run([*pip, *target, *wanted], check=True)
        stamp.write_text("\n".join(wanted))
    return folder
