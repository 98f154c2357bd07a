"""The bills of materials that `make images` writes, against what dpkg and Python say of the same images."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import tarfile
from pathlib import Path

import pytest
from cluster.builds import LINKED
from cluster.images import Image

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module", params=LINKED)
def image(request: pytest.FixtureRequest) -> Image:
    image = Image(request.param, "")
    if not image.bill.exists():
        pytest.skip("the images are not built here; `make images` builds them")
    return image


@pytest.fixture(scope="module")
def root(image: Image, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image's files that say which packages it has."""
    folder = tmp_path_factory.mktemp("root")
    for layer in json.loads(image.manifest)["layers"]:
        with tarfile.open(image.folder / layer["digest"].removeprefix("sha256:")) as tar:
            records = [
                entry for entry in tar if entry.isreg() and re.search(r"\.dist-info/|^var/lib/dpkg/", entry.name)
            ]
            tar.extractall(folder, records, filter="data")
    return folder


def listed(image: Image, kind: str) -> set[tuple[str, str]]:
    components = json.loads(image.bill.read_text())["components"]
    return {(each["name"], each["version"]) for each in components if each["purl"].startswith(f"pkg:{kind}/")}


def test_debians_packages(image: Image, root: Path) -> None:
    command = ["dpkg-query", f"--admindir={root / 'var/lib/dpkg'}", "--show", "--showformat=${Package} ${Version}\\n"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    assert len(lines) > 50
    assert listed(image, "deb") == {tuple(line.split()) for line in lines}


def test_pythons_packages(image: Image, root: Path) -> None:
    folders = {str(found.parent) for found in root.rglob("*.dist-info")}
    found = importlib.metadata.distributions(path=list(folders))
    expected = {(re.sub(r"[-_.]+", "-", each.metadata["Name"].lower()), each.version) for each in found}
    assert {"remotegpu", "grpcio"} <= {name for name, _ in expected}
    assert listed(image, "pypi") == expected


def test_rusts_packages(image: Image) -> None:
    assert {name for name, _ in listed(image, "cargo")} >= set(LINKED[image.tag])
