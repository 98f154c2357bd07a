"""Client and software GPU export what the table says, and nothing else: no program meets a missing symbol."""

import re
import subprocess
from pathlib import Path

import pytest
from support.system import DIST

EXPORTS = Path(__file__).parents[2] / "remoting" / "client" / "exports_generated"
CUDA = re.compile(r"(cu|nvml)[A-Z]\w*")


def exported(library: Path) -> set[str]:
    if not library.exists():
        pytest.skip(f"{library} is not built")
    listing = subprocess.run(["nm", "-D", "--defined-only", str(library)], check=True, capture_output=True, text=True)
    names = {line.split()[-1].partition("@")[0] for line in listing.stdout.splitlines()}
    return {name for name in names if CUDA.fullmatch(name)}


@pytest.mark.parametrize("library", ["client", "native"])
def test_a_library_exports_every_symbol_of_the_table_and_no_other(library: str) -> None:
    table = {line for line in EXPORTS.read_text().splitlines() if not line.startswith("#")}
    assert exported(DIST / library / "libcuda.so.1") == table
