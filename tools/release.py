"""Builds the files that `make release` puts into dist/, from target/portable (which `make release` builds) and this
clone:

    remotegpu-VERSION-….whl                      command line, appliance, client, worker, gateway, software GPU
    remotegpu-VERSION-linux-x86_64.tar.gz        remotegpu-run and the client, for machines without Python
    kubectl-remotegpu-VERSION.tar.gz, .yaml      the plugin of kubectl for krew, with the wheel inside, and its manifest
    remotegpu-VERSION.cdx.json                   what is linked into the programs of the wheel, or is copied into it
    remotegpu-VERSION.tgz                        the chart
    remotegpu-PART-VERSION.oci.tar, .cdx.json    images and their bills, where `make images` has built them
    RELEASE_NOTES.md, SHA256SUMS

If this machine lacks the tools for a file, the file is left out with a message.
"""

from __future__ import annotations

import email.parser
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from string import Template

from cluster import builds, contents, images
from cluster.control_plane import PROGRAMS
from cyclonedx.model.component import ComponentType

from remotegpu import __version__ as version

ROOT = Path(__file__).parents[1]
OUT = ROOT / "dist"
# The parts of target/dist that an installation uses. `pod` is left out: the device plugin's image mounts it.
PARTS = ("bin", "client", "dashboard", "frameworks", "lib", "native", "python", "trace")
# The parts of target/dist with which a machine without Python runs programs on an appliance.
ARCHIVED = ("bin/nvidia-smi", "bin/remotegpu-run", "client", "frameworks", "native/ptxas", "native/stand-ins")
# The folder for man pages below the parent folder of `bin`, where `man` searches.
MAN = "share/man/man1"
CRATES = ("worker", "softgpu", "bench", "client", "smi", "connect", "run", "trace", "sandbox")
OLDEST_GLIBC = (2, 17)
# The future address of the release's files, for the manifest of krew. The default is invalid: nothing is published.
URL = os.environ.get("REMOTEGPU_RELEASE_URL", f"https://remotegpu.invalid/v{version}")


def main() -> int:
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()
    try:
        _say("wheel")
        wheel = make_wheel(OUT, builds.DIST)
        _say("archive")
        make_archive(OUT, builds.DIST)
        _say("plugin for krew")
        make_plugin(OUT, wheel)
        _write(f"remotegpu-{version}.cdx.json", bill_of(wheel.name))
        _write("RELEASE_NOTES.md", notes_of((ROOT / "CHANGELOG.md").read_text(), version))
        make_chart(OUT)
        _copy_images()
    except (RuntimeError, subprocess.CalledProcessError) as error:
        output = getattr(error, "stderr", None)
        print(f"release: {error}{f': {output.strip()}' if output else ''}", file=sys.stderr)
        return 1
    files = sorted(OUT.iterdir())
    _write("SHA256SUMS", "".join(f"{_digest(file)}  {file.name}\n" for file in files))
    for file in files:
        print(f"    {file.stat().st_size / 1e6:8.1f} MB  {file.name}")
    return 0


def make_wheel(folder: Path, dist: Path) -> Path:
    """Builds the wheel: the Python packages and the built programs, tagged for the oldest glibc that all of them
    support."""
    with tempfile.TemporaryDirectory() as name:
        work, packed = Path(name), Path(name, "packed")
        packed.mkdir()
        _run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", f"--wheel-dir={work}", str(ROOT))
        (pure,) = work.glob("*.whl")
        _run(sys.executable, "-m", "wheel", "unpack", "--dest", str(work), str(pure))
        unpacked = work / f"remotegpu-{version}"
        inside = unpacked / "remotegpu" / "_dist"
        lay_out(dist, inside)
        _write_man_pages(unpacked / f"remotegpu-{version}.data" / "data" / MAN)
        _tag(unpacked, glibc_of(inside.rglob("*")))
        command = [sys.executable, "-m", "wheel", "pack", "--dest-dir", str(packed), str(unpacked)]
        _run(*command, SOURCE_DATE_EPOCH=_epoch())
        (made,) = packed.glob("*.whl")
        return Path(shutil.copy(made, folder))


def make_archive(folder: Path, dist: Path) -> Path:
    """Packs the archive for machines without Python, with one folder `remotegpu-VERSION`."""
    made = folder / f"remotegpu-{version}-linux-x86_64.tar.gz"
    with tempfile.TemporaryDirectory() as name:
        unpacked = Path(name, f"remotegpu-{version}")
        lay_out(dist, unpacked, ARCHIVED)
        _write_man_pages(unpacked / MAN, "remotegpu-run.1")
        shutil.copy(ROOT / "LICENSE", unpacked)
        _pack(made, Path(name))
    return made


def _write_man_pages(folder: Path, only: str = "*") -> None:
    with tempfile.TemporaryDirectory() as name:
        _run(sys.executable, "tools/man_pages.py", name)
        folder.mkdir(parents=True)
        for page in Path(name).glob(only):
            shutil.copy(page, folder)


def make_plugin(folder: Path, wheel: Path) -> Path:
    """Packs the archive that krew installs, and writes krew's manifest next to it."""
    made = folder / f"kubectl-remotegpu-{version}.tar.gz"
    with tempfile.TemporaryDirectory() as name:
        for file in (ROOT / "packaging/krew/kubectl-remotegpu", ROOT / "LICENSE", wheel):
            shutil.copy(file, name)
        _pack(made, Path(name))
    manifest = Template((ROOT / "packaging/krew/remotegpu.yaml").read_text())
    filled = manifest.substitute(version=version, uri=f"{URL}/{made.name}", sha256=_digest(made))
    (folder / f"kubectl-remotegpu-{version}.yaml").write_text(filled)
    return made


def _pack(made: Path, folder: Path) -> None:
    """Packs a folder into a .tar.gz. The same files give the same archive."""
    same = ("--sort=name", f"--mtime=@{_epoch()}", "--owner=0", "--group=0", "--numeric-owner")
    names = sorted(each.name for each in folder.iterdir())
    packed = ("--create", "--use-compress-program=gzip -9n", f"--file={made}", f"--directory={folder}")
    _run("tar", *packed, *same, *names)


def _epoch() -> str:
    """Returns the time of the commit, which all packed files get, so that releases are reproducible."""
    return os.environ.get("SOURCE_DATE_EPOCH") or _run("git", "log", "-1", "--format=%ct").strip()


def lay_out(dist: Path, folder: Path, parts: Iterable[str] = PARTS) -> None:
    """Copies the parts of `dist` without debug information. Replaces links, which a wheel cannot contain."""
    for part in parts:
        source, target = dist / part, folder / part
        if not source.exists():
            raise RuntimeError(f"{source} is missing: `make release` makes it")
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    for file in sorted(folder.rglob("*")):
        if _is_elf(file):
            _run("strip", "--strip-debug", str(file))
    for link in [file for file in folder.rglob("*") if file.is_symlink()]:
        _replace_link(link)


def _replace_link(link: Path) -> None:
    """Replaces a link to a library by an empty library that depends on the linked one in the same folder.

    A lookup of a function in it finds the linked library's function.
    """
    other = link.parent / link.readlink()
    link.unlink()
    options = ("--no-as-needed", "--disable-new-dtags", "-rpath,$ORIGIN", f"-soname,{link.name}")
    linker = [f"-Wl,{option}" for option in options]
    _run("cc", "-shared", "-nostdlib", "-s", *linker, "-x", "c", "/dev/null", "-x", "none", str(other), "-o", str(link))


def glibc_of(files: Iterable[Path]) -> tuple[int, int]:
    """Returns the newest version of glibc that the symbols of these programs and libraries need."""
    needed = {OLDEST_GLIBC}
    for file in files:
        if _is_elf(file):
            found = re.findall(r"GLIBC_(\d+)\.(\d+)", _run("objdump", "-T", str(file)))
            needed |= {(int(major), int(minor)) for major, minor in found}
    return max(needed)


def _is_elf(file: Path) -> bool:
    if file.is_symlink() or not file.is_file():
        return False
    with file.open("rb") as opened:
        return opened.read(4) == b"\x7fELF"


def _tag(unpacked: Path, glibc: tuple[int, int]) -> None:
    (record,) = unpacked.glob("*.dist-info/WHEEL")
    text = record.read_text().replace("Root-Is-Purelib: true", "Root-Is-Purelib: false")
    tag = f"py3-none-manylinux_{glibc[0]}_{glibc[1]}_x86_64"
    record.write_text(re.sub(r"^Tag: .*$", f"Tag: {tag}", text, flags=re.MULTILINE))


def bill_of(name: str) -> str:
    """Returns the wheel's bill of materials: crates, the dashboard's scripts, and copied Python packages."""
    linked = contents.crates(f"remotegpu-{crate}" for crate in CRATES) | contents.scripts()
    found = contents.Contents(name, sorted(_copied(builds.DIST / "python")), [])
    return contents.bill(found, linked, ComponentType.APPLICATION)


def _copied(folder: Path) -> Iterator[contents.Package]:
    for record in folder.glob("*.dist-info/METADATA"):
        headers = email.parser.Parser().parsestr(record.read_text(), headersonly=True)
        yield contents.Package("pypi", headers["Name"].lower(), headers["Version"])


def notes_of(changelog: str, number: str) -> str:
    """Returns the changelog's section of this version; otherwise that of unreleased changes."""
    pattern = re.compile(r"^## \[([^\]]+)\][^\n]*\n(.*?)(?=^## \[|\Z)", re.MULTILINE | re.DOTALL)
    sections = {name: text.strip() for name, text in pattern.findall(changelog)}
    text = sections.get(number) or sections.get("Unreleased")
    if not text:
        raise RuntimeError(
            f"CHANGELOG.md has no section [{number}] and none [Unreleased] with a text: say there what is new"
        )
    return f"# remotegpu {number}\n\n{text}\n"


def make_chart(folder: Path) -> Path | None:
    """Packs the chart. Returns None if Helm is missing."""
    own = PROGRAMS / "helm"
    helm = shutil.which("helm") or (str(own) if own.exists() else None)
    if helm is None:
        _say("no chart: there is no Helm here, which `make cluster-programs` builds with Go")
        return None
    _say("chart")
    numbers = (f"--version={version}", f"--app-version={version}")
    _run(helm, "package", str(ROOT / "charts" / "remotegpu"), *numbers, f"--destination={folder}")
    return folder / f"remotegpu-{version}.tgz"


def _copy_images() -> None:
    built = [images.Image(f"localhost/remotegpu-{part}:dev", "") for part in builds.PARTS]
    if not all(image.bill.exists() for image in built):
        _say("no images: `make images` builds them, which needs root and Debian's packages buildah and mmdebstrap")
        return
    _say("images")
    for part, image in zip(builds.PARTS, built, strict=True):
        name = f"remotegpu-{part}"
        with (OUT / f"{name}-{version}.oci.tar").open("wb") as file:
            # The image name that the chart uses, unless its values name a registry.
            images.write_archive(image, file, f"localhost/{name}:{version}")
        shutil.copy(image.bill, OUT / f"{name}-{version}.cdx.json")


def _write(name: str, text: str) -> None:
    (OUT / name).write_text(text)


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _run(*command: str, **environment: str) -> str:
    done = subprocess.run(command, cwd=ROOT, env=os.environ | environment, check=True, capture_output=True, text=True)
    return done.stdout


def _say(text: str) -> None:
    print(f"==> {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
