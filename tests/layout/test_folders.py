"""The tree says where things are: folders are small, and each begins with a page about itself."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRODUCT = ("operator", "deviceplugin", "remoting", "offload")
MOST_FILES = 20
LEAST_LINES = 3
# One file for each group of functions of CUDA's driver, or for each kind of instruction; each page says so.
LARGE = {
    "remoting/driverapi/src",
    "remoting/client/src/abi",
    "remoting/softgpu/src/api",
    "remoting/softgpu/src/engine/exec",
}
HEADS = ("__init__.py", "mod.rs", "lib.rs", "main.rs")


def folders() -> dict[Path, list[Path]]:
    listing = subprocess.run(["git", "ls-files", *PRODUCT], cwd=ROOT, check=True, capture_output=True, text=True)
    found: dict[Path, list[Path]] = defaultdict(list)
    for line in listing.stdout.splitlines():
        path = ROOT / line
        parts = path.relative_to(ROOT).parts
        if (
            path.suffix in {".py", ".rs"}
            and path.exists()
            and "tests" not in parts
            and parts[:2] != ("remoting", "fuzz")
        ):
            found[path.parent].append(path)
    return found


def page_of(folder: Path) -> str | None:
    """The text at the head of a folder: in its own file, or in the module file beside it; None if it has none."""
    own = [folder / name for name in HEADS if (folder / name).exists()]
    beside = [path for path in [folder.with_suffix(".rs")] if path.exists()]
    for head in [*own, *beside]:
        text = head.read_text()
        if head.suffix == ".py":
            return ast.get_docstring(ast.parse(text)) or ""
        return "\n".join(re.findall(r"^//! ?(.*)$", text, re.M))
    return None


FOLDERS = folders()


def name_of(folder: Path) -> str:
    return str(folder.relative_to(ROOT))


def test_no_folder_is_large_without_a_reason() -> None:
    large = {name_of(folder) for folder, files in FOLDERS.items() if len(files) > MOST_FILES}
    assert large == LARGE


@pytest.mark.parametrize("folder", sorted(folder for folder in FOLDERS if len(FOLDERS[folder]) > 1), ids=name_of)
def test_a_folder_begins_with_a_page(folder: Path) -> None:
    page = page_of(folder)
    if page is None or folder.name == "_generated":
        # The root of a crate, with a build script and C beside `src`.
        assert folder.name == "_generated" or (folder / "Cargo.toml").exists()
        return
    assert sum(1 for line in page.splitlines() if line.strip()) >= LEAST_LINES
