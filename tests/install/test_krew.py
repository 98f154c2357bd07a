"""The plugin of kubectl for krew: its manifest by krew's rules, and its program at its first use."""

from __future__ import annotations

import hashlib
import os
import runpy
import subprocess
import tarfile
import zipfile
from pathlib import Path

import jsonschema
import pytest
import yaml
from support.system import ROOT

from remotegpu import __version__

pytestmark = pytest.mark.timeout(300)

# krew's plugin.md and pkg/index/types.go: these fields and no others; internal/index/validation says the rest.
TEXT = {"type": "string", "minLength": 1}
PLATFORM = {
    "type": "object",
    "additionalProperties": False,
    "required": ["uri", "sha256", "selector", "bin"],
    "properties": {
        "uri": {"type": "string", "pattern": "^https://"},
        "sha256": {"type": "string", "pattern": "^[a-f0-9]{64}$"},
        "bin": TEXT,
        "files": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["from", "to"],
                "properties": {"from": TEXT, "to": TEXT},
            },
        },
        "selector": {
            "type": "object",
            "required": ["matchLabels"],
            "properties": {
                "matchLabels": {"type": "object", "minProperties": 1, "propertyNames": {"enum": ["os", "arch"]}}
            },
        },
    },
}
SPEC = {
    "type": "object",
    "additionalProperties": False,
    "required": ["version", "shortDescription", "platforms"],
    "properties": {
        "version": {"type": "string", "pattern": r"^v\d+\.\d+\.\d+"},
        "shortDescription": {"type": "string", "pattern": r"^[^\r\n]+$"},
        "description": TEXT,
        "caveats": TEXT,
        "homepage": TEXT,
        "platforms": {"type": "array", "minItems": 1, "items": PLATFORM},
    },
}
MANIFEST = {
    "type": "object",
    "additionalProperties": False,
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"const": "krew.googlecontainertools.github.com/v1alpha2"},
        "kind": {"const": "Plugin"},
        "metadata": {"type": "object", "required": ["name"], "properties": {"name": {"const": "remotegpu"}}},
        "spec": SPEC,
    },
}

CALLED = """
import sys
def main():
    print(sys.argv[1:])
    sys.exit(3)
def complete():
    print("complete", sys.argv[1:])
"""
PROGRAMS = """[console_scripts]
kubectl-remotegpu = called:main
kubectl_complete-remotegpu = called:complete
"""


def make_wheel(folder: Path) -> Path:
    """One of the same name and extras as ours, that needs nothing and says how it was called."""
    made, info = folder / f"remotegpu-{__version__}-py3-none-any.whl", f"remotegpu-{__version__}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: remotegpu\nVersion: {__version__}\n"
    files = {
        "called.py": CALLED,
        f"{info}/METADATA": f"{metadata}Provides-Extra: kubernetes\nProvides-Extra: top\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": PROGRAMS,
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(made, "w") as packed:
        for name, text in files.items():
            packed.writestr(name, text)
    return made


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("krew")
    made: Path = runpy.run_path(str(ROOT / "tools" / "release.py"))["make_plugin"](folder, make_wheel(folder))
    return made


def test_the_manifest_is_krews(plugin: Path) -> None:
    manifest = yaml.safe_load(plugin.with_name(f"kubectl-remotegpu-{__version__}.yaml").read_text())
    jsonschema.validate(manifest, MANIFEST)
    (platform,) = manifest["spec"]["platforms"]
    assert manifest["spec"]["version"] == f"v{__version__}"
    assert platform["uri"].endswith(f"/{plugin.name}")
    assert platform["sha256"] == hashlib.sha256(plugin.read_bytes()).hexdigest()
    with tarfile.open(plugin) as opened:
        held = {member.name for member in opened}
    copied = {name for each in platform["files"] for name in held if Path(name).match(each["from"])}
    assert copied == held and platform["bin"] in held


def test_the_program_installs_itself_once_and_passes_on_what_it_is_told(plugin: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with tarfile.open(plugin) as opened:
        opened.extractall(store, filter="data")
    links = tmp_path / ".krew" / "bin"
    links.mkdir(parents=True)
    (links / "kubectl-remotegpu").symlink_to(store / "kubectl-remotegpu")  # as krew makes it
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path / "data"), "PIP_NO_INDEX": "1"}
    caveats = yaml.safe_load(plugin.with_name(f"kubectl-remotegpu-{__version__}.yaml").read_text())["spec"]["caveats"]
    (command,) = [line for line in caveats.splitlines() if "ln -s" in line]
    subprocess.run(["sh", "-c", command], env=environment, check=True)

    def call(program: str = "kubectl-remotegpu", **more: str) -> subprocess.CompletedProcess[str]:
        command = [str(links / program), "why", "a pod"]
        return subprocess.run(command, env=environment | more, capture_output=True, text=True, timeout=120)

    early = call("kubectl_complete-remotegpu")
    assert (early.returncode, early.stdout, early.stderr) == (0, ":4\n", "")
    assert not (tmp_path / "data").exists(), "a completion installs nothing"
    nowhere = call(PATH="/usr/bin:/bin", PYTHONHOME=str(tmp_path))  # where no Python starts
    assert (nowhere.returncode, nowhere.stdout) == (70, "")
    assert "that failed, for the reason above: it needs python3" in nowhere.stderr
    first, second = call(), call()
    assert [(each.returncode, each.stdout) for each in (first, second)] == [(3, "['why', 'a pod']\n")] * 2
    assert "making a Python environment" in first.stderr and second.stderr == ""
    completed = call("kubectl_complete-remotegpu")
    assert (completed.returncode, completed.stdout) == (0, "complete ['why', 'a pod']\n")
