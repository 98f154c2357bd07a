"""Write all files that are generated from the function table: `python remoting/codegen/generate.py [FOLDER]`.

The files are written to FOLDER instead of the repository, if it is given, for a comparison.
"""

# ruff: noqa: INP001  (a script, not part of a package)

import sys
from pathlib import Path

from remotegpu_codegen.outputs import outputs
from remotegpu_codegen.registry import RegistryError

ROOT = Path(__file__).parents[2]


def main() -> int:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT
    try:
        texts = outputs(ROOT)
    except RegistryError as error:
        sys.stderr.write(f"remoting/registry: {error}\n")
        return 1
    for name, text in texts.items():
        path = target / name
        # Do not rewrite an unchanged file, so that its time stamp causes no rebuild.
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
