"""Guards of the repository's shape; each states why it is there."""

from __future__ import annotations

import re
import runpy
import subprocess
import tomllib
from pathlib import Path

import grimp
import pytest

from remotegpu import __version__

ROOT = Path(__file__).parents[2]
FLAT_TABLES = ("_generated.rs", "_pb2.py", "_pb2_grpc.py", "_pb2.pyi")
HARD_LIMIT = 700


def tracked(*patterns: str) -> list[Path]:
    listing = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, check=True, capture_output=True, text=True)
    return [ROOT / line for line in listing.stdout.splitlines()]


def test_nothing_shadows_the_standard_module_operator() -> None:
    """A conftest, test or __init__.py in top-level operator/ replaces the stdlib's `operator` in some pytest modes."""
    assert not [p for p in tracked("operator/*.py") if p.parent == ROOT / "operator"]


def test_tests_are_not_packages_and_have_unique_names() -> None:
    """pytest's default import mode needs unique basenames; packages under tests/ could shadow real ones.

    What lies in `programs` are users' programs, which pytest never imports.
    """
    files = tracked("tests/**/*.py", "offload/tests/**/*.py", "e2e/**/*.py")
    assert not [p for p in files if p.name == "__init__.py" and not {"support", "programs"} & set(p.parts)]
    names = [p.name for p in files if p.name.startswith("test_")]
    assert sorted(names) == sorted(set(names))


def test_files_stay_readable() -> None:
    sources = [
        p for p in tracked("*.py", "*.rs", "*.go") if not p.name.endswith(FLAT_TABLES) and p.name != "generated.rs"
    ]
    long = {str(p.relative_to(ROOT)): n for p in sources if (n := len(p.read_text().splitlines())) > HARD_LIMIT}
    assert not long


def test_unsafe_is_confined_to_the_files_that_safety_md_names() -> None:
    """A reader must find what to trust; a new `unsafe` needs its sentence."""
    missing: list[str] = []
    for crate in (*CONTRACTS, "fuzz"):
        folder = folder_of(crate)
        safety = folder / "SAFETY.md"
        named = safety.read_text() if safety.exists() else ""
        for source in (folder / "src").rglob("*.rs"):
            code = "\n".join(line.split("//")[0] for line in source.read_text().splitlines())
            path = source.relative_to(folder / "src")
            listed = str(path) in named or any(f"{parent}/" in named for parent in path.parents if str(parent) != ".")
            if re.search(r"\bunsafe\b", code) and not listed:
                missing.append(f"{crate}/{path}")
    assert not missing


# Which of our crates a crate may use; the same as `must not` in docs/architecture.md. Tests may use more.
CONTRACTS: dict[str, set[str]] = {
    "protocol": set(),
    "driverapi": set(),
    "carrier": {"protocol"},
    "graphs": {"driverapi"},
    "softgpu": {"driverapi", "graphs"},
    "sandbox": set(),
    "worker": {"carrier", "driverapi", "protocol", "sandbox"},
    "client": {"carrier", "driverapi", "graphs", "protocol"},
    "smi": {"driverapi"},
    "bench": {"driverapi"},
    "connect": {"carrier", "client"},
    "run": {"client"},
    "recorder": {"driverapi"},
}


def folder_of(crate: str) -> Path:
    """Returns the folder of a crate: beside the product, if only developers use it."""
    return ROOT / ("tools" if crate in ("bench", "recorder") else "remoting") / crate


@pytest.mark.parametrize("crate", CONTRACTS)
def test_crates_use_only_what_the_architecture_allows(crate: str) -> None:
    manifest = tomllib.loads((folder_of(crate) / "Cargo.toml").read_text())
    assert {name.removeprefix("remotegpu-") for name in manifest.get("dependencies", {})} & set(CONTRACTS) <= CONTRACTS[
        crate
    ]


def test_the_readme_gives_the_two_commands_and_ci_runs_the_tests() -> None:
    readme = (ROOT / "README.md").read_text()
    assert "make demo" in readme and "make test" in readme
    assert "make test" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.parametrize(
    "host", ["pypi" + ".org", "crates" + ".io", "proxy.golang" + ".org", "registry.npmjs" + ".org"]
)
def test_no_registry_host_is_named(host: str) -> None:
    """Machines have mirrors; a name in a file would break them. Lock files are the package managers' own."""
    files = [p for p in tracked() if p.suffix not in {".lock", ".sum"} and p != Path(__file__)]
    assert not [str(p) for p in files if p.is_file() and host in p.read_text(errors="replace")]


def test_the_version_is_the_same_everywhere() -> None:
    """Its home is remoting/remotegpu/__init__.py. If not: `make generate`."""
    tool = runpy.run_path(str(ROOT / "tools" / "write_version.py"))
    for name, prefixes in tool["PLACES"].items():
        text = (ROOT / name).read_text()
        for before in prefixes:
            assert tool["written"](text, before, __version__) == text, name
            assert tool["written"](text, before, "9.9.9") != text, name
    ours = {tomllib.loads((folder_of(each) / "Cargo.toml").read_text())["package"]["name"] for each in CONTRACTS}
    locked = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    assert {each["version"] for each in locked if each["name"] in ours} == {__version__}


@pytest.mark.parametrize("package", ["remotegpu", "remotegpu_operator", "remotegpu_deviceplugin", "remotegpu_offload"])
def test_at_most_three_files_import_each_other(package: str) -> None:
    """Imports for types count: who knows whom is what a reader has to keep in mind."""
    graph = grimp.build_graph(package, cache_dir=None)
    circles = {
        frozenset({module} | graph.find_downstream_modules(module) & graph.find_upstream_modules(module))
        for module in graph.modules
    }
    assert [sorted(circle) for circle in circles if len(circle) > 3] == []
