"""Finds the C functions that the Rust sources export, by searching their text."""

import re
from pathlib import Path

PAIR = re.compile(r"\bfn\s+((?:cu|nvml)[A-Z]\w*)\s*[|/]\s*((?:cu|nvml)[A-Z]\w*)\s*\(")
ONE = re.compile(r"\bfn\s+((?:cu|nvml)[A-Z]\w*)\s*\(")
EXPORTING = ("no_mangle", "exports!", "entry_points!")


def exported(text: str) -> set[str]:
    """Returns the functions of CUDA or NVML in a source text; the empty set if the text exports no functions."""
    if not any(word in text for word in EXPORTING):
        return set()
    names = {name for pair in PAIR.findall(text) for name in pair}
    return names | set(ONE.findall(text))


def exported_by_hand(crate: Path) -> set[str]:
    """Returns the functions that the hand-written sources of a crate export."""
    sources = (p for p in (crate / "src").rglob("*.rs") if not p.name.endswith("generated.rs"))
    return {name for source in sources for name in exported(source.read_text())}
