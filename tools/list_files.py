"""Writes the list of files at the end of docs/architecture.md: `make generate`. A test compares it."""

from __future__ import annotations

import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
HEADING = "## Files by folder\n"
# Below these, each folder with more than one file gets a line.
ROOTS = (
    *(f"remoting/{crate}/src" for crate in ("client", "worker", "softgpu", "graphs", "protocol", "carrier")),
    *(f"remoting/{crate}/src" for crate in ("driverapi", "sandbox", "trace", "smi", "bench", "connect", "run")),
    "remoting/remotegpu",
    "operator/remotegpu_operator",
    "deviceplugin/remotegpu_deviceplugin",
    "offload/remotegpu_offload",
)
# They hold no subject of their own, or are generated.
WITHOUT = {"__init__", "__main__", "mod", "lib", "main", "bindings", "tests"}


def names(folder: Path) -> list[str]:
    files = (file.stem for file in folder.iterdir() if file.suffix in {".py", ".rs"})
    return sorted(name for name in files if name not in WITHOUT and not name.endswith(("_generated", "_tests", "_pb2")))


def section() -> str:
    """All files of the product by their names, which say what they hold."""
    lines = [
        "",
        "Names without `.rs` and `.py`; each file's first line says what it holds. `make generate` writes this.",
    ]
    # Names are not prose.
    lines += ["", "<!-- rumdl-disable MD061 -->", ""]
    for root in ROOTS:
        folders = sorted(folder for folder in [ROOT / root, *(ROOT / root).rglob("*")] if folder.is_dir())
        for folder in folders:
            if "paged" not in folder.parts and len(found := names(folder)) > 1:
                text = f"- `{folder.relative_to(ROOT)}/`: {', '.join(found)}"
                lines += textwrap.wrap(text, 118, subsequent_indent="  ", break_on_hyphens=False)
    return HEADING + "\n".join(lines) + "\n"


def page() -> str:
    """The whole page, with the list as it should be."""
    before, _, _ = PAGE.read_text().partition(HEADING)
    return before.rstrip() + "\n\n" + section()


if __name__ == "__main__":
    PAGE.write_text(page())
