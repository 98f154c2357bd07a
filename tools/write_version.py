"""Writes the version of remoting/remotegpu/__init__.py into files that need a literal: `make generate`.

A test compares.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Final

from remotegpu import __version__

ROOT: Final = Path(__file__).parents[1]
# The text before the version at the beginning of a line, for each file.
PLACES: Final = {
    "Cargo.toml": (r"^version = ",),
    "charts/remotegpu/Chart.yaml": (r"^version: ", r"^appVersion: "),
}


def written(text: str, before: str, version: str) -> str:
    quote = '"' if before.endswith("= ") else ""
    done, count = re.subn(f"({before}).*$", rf"\g<1>{quote}{version}{quote}", text, flags=re.MULTILINE)
    assert count == 1, f"{count} lines begin with {before}"
    return done


def main() -> None:
    for name, prefixes in PLACES.items():
        file = ROOT / name
        text = file.read_text()
        for before in prefixes:
            text = written(text, before, __version__)
        if text != file.read_text():
            file.write_text(text)
    # Cargo.lock contains the versions of the workspace's packages.
    subprocess.run(["cargo", "update", "--workspace", "--offline", "--quiet"], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
