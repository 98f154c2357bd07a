"""The contents of an image: read from its layers, each file with the package that owns it."""

from __future__ import annotations

import hashlib
import io
import json
import re
import subprocess
import tarfile
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from cluster import contents
from cluster.images import Image, write_archive
from support.system import DIST, ROOT

from remotegpu import __version__

SITE = "opt/remotegpu/lib/python3.11/site-packages"
DPKG = """Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9+deb12u10

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1
"""
METADATA = "Metadata-Version: 2.1\nName: Some_Package\nVersion: 1.2\nLicense-Expression: MIT\n\nName: not this\n"


def layer(folder: Path, files: Mapping[str, str | int]) -> str:
    """Writes a layer to its file, as buildah does, and returns its digest. A file has a content, or a mode and no
    content; a content that begins with `->` is a link.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            if isinstance(content, int):
                entry.mode, content = content, ""
            if content.startswith("->"):
                entry.type, entry.linkname = tarfile.SYMTYPE, content.removeprefix("->")
            entry.size = 0 if entry.issym() else len(content)
            tar.addfile(entry, io.BytesIO(content.encode()))
    digest = hashlib.sha256(buffer.getvalue()).hexdigest()
    (folder / digest).write_bytes(buffer.getvalue())
    return f"sha256:{digest}"


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Image]:
    monkeypatch.setattr("cluster.images.STORE", tmp_path)

    def make(*layers: Mapping[str, str | int]) -> Image:
        image = Image("localhost/test:dev", "key")
        image.folder.mkdir()
        digests = [{"digest": layer(image.folder, files)} for files in layers]
        configuration = hashlib.sha256(b"{}").hexdigest()
        (image.folder / configuration).write_bytes(b"{}")
        manifest = {"config": {"digest": f"sha256:{configuration}"}, "layers": digests}
        (image.folder / "manifest.json").write_text(json.dumps(manifest))
        return image

    return make


GOOD = (
    {
        "var/lib/dpkg/status": DPKG,
        "var/lib/dpkg/info/libc6:amd64.list": "/.\n/lib\n/lib/x86_64-linux-gnu\n/lib/x86_64-linux-gnu/libc.so.6\n",
        "usr/lib/x86_64-linux-gnu/libc.so.6": "->libc-2.36.so",
        "tmp/left": "",
    },
    {
        "tmp/.wh.left": "",
        f"{SITE}/some_package-1.2.dist-info/METADATA": METADATA,
        f"{SITE}/some_package-1.2.dist-info/RECORD": "some/code.py,sha256=x,1\n../../../bin/some,,\n"
        '"with, comma.py",,\nsome_package-1.2.dist-info/METADATA,,\nsome_package-1.2.dist-info/RECORD,,\n',
        f"{SITE}/some/code.py": "1",
        f"{SITE}/some/__pycache__/code.cpython-311.pyc": "compiled",
        f"{SITE}/with, comma.py": "",
        "opt/remotegpu/bin/some": "",
        "opt/remotegpu/dist/bin/remotegpu-worker": "",
    },
)


def test_each_file_has_the_package_that_it_is_of(make: Callable[..., Image]) -> None:
    found = contents.read(make(*GOOD))
    assert found.unowned == []
    assert {(each.kind, each.name, each.version, each.files) for each in found.packages} == {
        ("deb", "libc6", "2.36-9+deb12u10", 2),
        ("generic", "set-up", "", 1),
        ("pypi", "some-package", "1.2", 6),
        ("generic", "remotegpu", __version__, 1),
    }


def test_a_program_among_settings_is_named(make: Callable[..., Image]) -> None:
    executable = {"etc/cron.daily/stray": 0o755, "etc/stray.conf": 0o644}
    assert contents.read(make(*GOOD, executable)).unowned == ["etc/cron.daily/stray"]


@pytest.mark.parametrize("stray", ["usr/bin/stray", f"{SITE}/stray.py", "opt/remotegpu/bin/stray", "stray"])
def test_a_file_of_no_package_is_named(make: Callable[..., Image], stray: str) -> None:
    assert contents.read(make(*GOOD, {stray: ""})).unowned == [stray]


def test_rust_packages_are_those_of_the_lock_and_of_what_was_built() -> None:
    """The oracle: panics name the source file of the package that they are from."""
    found = {(each.name, each.version) for each in contents.crates(["remotegpu-worker", "remotegpu-softgpu"])}
    locked = {(each["name"], each["version"]) for each in tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]}
    rust = subprocess.run(["rustc", "--version"], check=True, capture_output=True, text=True).stdout.split()[1]
    assert found - locked == {("rust", rust)}
    named = set()
    for program in ("bin/remotegpu-worker", "bin/remotegpu-gateway", "native/libcuda.so.1"):
        named |= set(
            re.findall(rb"/registry/src/[^/]+/([\w-]+?)-(\d+\.\d+\.\d+[^/]*)/src/", (DIST / program).read_bytes())
        )
    built = {(name.decode(), version.decode()) for name, version in named}
    assert ("hyper", "1") in {(name, version[0]) for name, version in built}
    assert built <= found


def test_scripts_are_those_that_the_dashboard_loads() -> None:
    """The oracle: the packages that npm was asked for, and the file that it installed."""
    asked = json.loads((ROOT / "operator" / "dashboard" / "package.json").read_text())["dependencies"]
    assert {(each.name, each.version) for each in contents.scripts()} == {*asked.items(), ("preact", "")}
    assert [file.name for file in (DIST / "dashboard").glob("*.js")] == [f"{name}.js" for name in asked]


def test_the_bill_of_materials_has_every_package(make: Callable[..., Image]) -> None:
    found = contents.read(make(*GOOD))
    bill = json.loads(contents.bill(found, [contents.Package("cargo", "some-crate", "0.1.0")]))
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", "localhost/test:dev")
    assert {each["purl"] for each in bill["components"]} == {
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=amd64",
        "pkg:generic/set-up",
        "pkg:pypi/some-package@1.2",
        f"pkg:generic/remotegpu@{__version__}",
        "pkg:cargo/some-crate@0.1.0",
    }


def test_an_archive_has_every_blob_under_its_digest_but_those_that_are_known(make: Callable[..., Image]) -> None:
    image = make(*GOOD)
    for known in (set(), {next(iter(image.blobs()))}):
        buffer = io.BytesIO()
        write_archive(image, buffer, "localhost/some:1", known)
        with tarfile.open(fileobj=io.BytesIO(buffer.getvalue())) as archive:
            found = {entry.name: archive.extractfile(entry).read() for entry in archive}  # type: ignore[union-attr]
        assert json.loads(found["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
        (listed,) = json.loads(found["index.json"])["manifests"]
        assert listed["annotations"] == {"io.containerd.image.name": "localhost/some:1"}
        blobs = {
            f"sha256:{hashlib.sha256(found[name]).hexdigest()}" for name in found if name.startswith("blobs/sha256/")
        }
        assert {f"blobs/{digest.replace(':', '/')}" for digest in blobs} == {name for name in found if "/" in name}
        assert blobs == {listed["digest"], *image.blobs()} - known


def test_bases_of_images_are_pinned_by_digest() -> None:
    """Bases from a registry have a digest; an ARG without one could be anything tomorrow."""
    for path in (ROOT / "Dockerfile", ROOT / "examples/Dockerfile", ROOT / "examples/09-offload/Dockerfile"):
        text = path.read_text()
        given = dict(re.findall(r"^ARG (\w+)=(\S+)$", text, re.MULTILINE))
        stages = set(re.findall(r"^FROM \S+ AS (\w+)$", text, re.MULTILINE)) | {"scratch"}
        for base in re.findall(r"^FROM (\S+)", text, re.MULTILINE):
            named = given[base[2:-1]] if base.startswith("$") else base
            ours = named.startswith(("localhost/", "remotegpu-"))
            assert named in stages or ours or re.search(r"@sha256:[0-9a-f]{64}$", named), f"{path}: {named}"
