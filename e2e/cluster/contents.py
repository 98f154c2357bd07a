"""Lists an image's packages with versions, and files that no package owns. Writes bills of materials in CycloneDX.

Debian's and Python's packages are read from the image's own records. Rust's crates are linked into our programs and are
read from Cargo.lock; the dashboard's packages come from npm's lock.
"""

from __future__ import annotations

import csv
import email.parser
import json
import subprocess
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from cluster.images import Image
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from remotegpu import __version__

ROOT = Path(__file__).parents[2]
TARGET = "x86_64-unknown-linux-gnu"

# The folder of our programs and libraries; the Python packages that come along with them have records of their own.
_OURS = "opt/remotegpu/dist/"
# Files that packages write during setup and no record lists: settings and state, none of them a program.
_SET_UP = ("dev/", "etc/", "root/", "var/", "usr/share/info/dir")
# Files that a builder of images writes, executable or not.
_OF_THE_BUILDER = ("etc/hostname", "etc/hosts", "etc/resolv.conf")
# Files that the module venv writes.
_VENV = ("activate", "activate.csh", "activate.fish", "Activate.ps1")


@dataclass(frozen=True, order=True)
class Package:
    kind: str  # the type in its package URL: deb, pypi, cargo, npm, generic
    name: str
    version: str
    architecture: str = ""
    files: int = field(default=0, compare=False)

    @property
    def url(self) -> PackageURL:
        namespace = "debian" if self.kind == "deb" else None
        qualifiers = {"arch": self.architecture} if self.architecture else None
        return PackageURL(self.kind, namespace, self.name, self.version or None, qualifiers)


@dataclass(frozen=True)
class Contents:
    image: str
    packages: list[Package]
    unowned: list[str]


def read(image: Image) -> Contents:
    """Returns the packages that own files in the image, and the files that none owns. Links only name other files."""
    files, texts = _files(image)
    owners = dict(_debian(texts)) | dict(_python(texts))
    counted: dict[Package, int] = {}
    unowned = []
    for path, entry in sorted(files.items()):
        package = owners.get(path) or _owner_of_made(path, entry, owners)
        if package is not None:
            counted[package] = counted.get(package, 0) + 1
        elif not entry.issym():
            unowned.append(path)
    return Contents(image.tag, [replace(each, files=count) for each, count in sorted(counted.items())], unowned)


def crates(roots: Iterable[str]) -> set[Package]:
    """Returns the crates linked into these packages of the workspace, themselves included, and Rust's library."""
    command = [
        "cargo",
        "tree",
        "--locked",
        "--offline",
        "--edges=normal",
        "--prefix=none",
        "--no-dedupe",
        "--format={p}",
    ]
    command += [f"--target={TARGET}", *(f"--package={root}" for root in roots)]
    lines = [line.split() for line in _run(*command).splitlines() if line]
    found = {Package("cargo", name, version.removeprefix("v")) for name, version, *_ in lines}
    return found | {Package("generic", "rust", _run("rustc", "--version").split()[1])}


def scripts() -> set[Package]:
    """Returns the npm packages that `tools/dashboard.sh` copies, and preact, inside one, without a version."""
    lock = json.loads((ROOT / "operator" / "dashboard" / "package-lock.json").read_text())["packages"]
    used = {path: each for path, each in lock.items() if path and not each.get("dev")}
    found = {Package("npm", path.removeprefix("node_modules/"), each["version"]) for path, each in used.items()}
    return found | {Package("npm", "preact", "")}


def bill(found: Contents, linked: Iterable[Package], kind: ComponentType = ComponentType.CONTAINER) -> str:
    """Returns the bill of materials: CycloneDX 1.6 as JSON. `kind` is the type of the whole."""
    bom = Bom(components=[_component(package) for package in {*found.packages, *linked}])
    bom.metadata.component = whole = Component(name=found.image, type=kind)
    bom.register_dependency(whole, bom.components)
    return JsonV1Dot6(bom).output_as_string(indent=1)


def _component(package: Package) -> Component:
    url = package.url
    version = package.version or None
    return Component(name=package.name, version=version, type=ComponentType.LIBRARY, purl=url, bom_ref=url.to_string())


def _run(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def _files(image: Image) -> tuple[dict[str, tarfile.TarInfo], dict[str, str]]:
    """Returns all files and links of the image, and the text of the files that are records of packages."""
    files: dict[str, tarfile.TarInfo] = {}
    texts: dict[str, str] = {}
    for layer in json.loads(image.manifest)["layers"]:
        added: dict[str, tarfile.TarInfo] = {}
        with tarfile.open(image.folder / layer["digest"].removeprefix("sha256:")) as tar:
            for entry in tar:
                path = PurePosixPath(entry.name.removeprefix("./"))
                if path.name.startswith(".wh."):
                    # A whiteout hides a file or a folder of the layers below, or all of its own folder.
                    gone = path.parent if path.name == ".wh..wh..opq" else path.with_name(path.name[len(".wh.") :])
                    files = {each: kept for each, kept in files.items() if not f"{each}/".startswith(f"{gone}/")}
                elif not entry.isdir():
                    added[str(path)] = entry
                    if _is_record(path) and (content := tar.extractfile(entry)) is not None:
                        texts[str(path)] = content.read().decode(errors="replace")
        files |= added
    return files, {path: text for path, text in texts.items() if path in files}


def _is_record(path: PurePosixPath) -> bool:
    if path.parent.name.endswith(".dist-info"):
        return path.name in ("METADATA", "RECORD")
    return str(path) == "var/lib/dpkg/status" or (str(path.parent) == "var/lib/dpkg/info" and path.suffix == ".list")


def _debian(texts: dict[str, str]) -> Iterator[tuple[str, Package]]:
    versions = {}
    for paragraph in texts.get("var/lib/dpkg/status", "").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and line[0] != " ")
        if fields.get("Status", "").endswith(" installed"):
            versions[fields["Package"]] = Package("deb", fields["Package"], fields["Version"], fields["Architecture"])
    for path, text in texts.items():
        if path.endswith(".list"):
            package = versions.get(PurePosixPath(path).stem.partition(":")[0])
            if package is not None:
                for line in (path, *text.splitlines()):
                    yield _merged(line.removeprefix("/")), package


def _merged(path: str) -> str:
    """Debian's packages name files by folders that are links into /usr now."""
    first = path.partition("/")[0]
    return f"usr/{path}" if first in ("bin", "sbin", "lib", "lib32", "lib64", "libx32") and "/" in path else path


def _python(texts: dict[str, str]) -> Iterator[tuple[str, Package]]:
    for path, text in texts.items():
        if not path.endswith(".dist-info/METADATA"):
            continue
        headers = email.parser.Parser().parsestr(text, headersonly=True)
        name = headers["Name"].lower().replace("_", "-").replace(".", "-")
        package = Package("pypi", name, headers["Version"])
        folder = PurePosixPath(path).parent
        for row in csv.reader(texts.get(f"{folder}/RECORD", "").splitlines()):
            yield _plain(folder.parent / row[0]), package


def _plain(path: PurePosixPath) -> str:
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)


def _owner_of_made(file: str, entry: tarfile.TarInfo, owners: dict[str, Package]) -> Package | None:
    path = PurePosixPath(file)
    if path.parent.name == "__pycache__" and path.suffix == ".pyc":
        return owners.get(str(path.parent.parent / f"{path.name.partition('.')[0]}.py"))
    if file.startswith(_OURS):
        return Package("generic", "remotegpu", __version__)
    if file.startswith("opt/") and (path.name == "pyvenv.cfg" or (path.parent.name == "bin" and path.name in _VENV)):
        return Package("generic", "venv", "")
    if str(path.parent) == "var/lib/dpkg/info":
        return owners.get(f"{path.parent}/{path.stem}.list", Package("generic", "set-up", ""))
    if file in _OF_THE_BUILDER or (file.startswith(_SET_UP) and not (entry.isreg() and entry.mode & 0o111)):
        return Package("generic", "set-up", "")
    return None
