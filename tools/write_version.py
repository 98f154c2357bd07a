"""Writes the version of remoting/remotegpu/__init__.py where it must be a literal: `make generate`. A test compares."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Final

from remotegpu import __version__

ROOT: Final = Path(__file__).parents[1]
# Each with what stands before the version, at the beginning of a line.
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
    # Cargo.lock names the workspace's packages with their versions.
    subprocess.run(["cargo", "update", "--workspace", "--offline", "--quiet"], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
