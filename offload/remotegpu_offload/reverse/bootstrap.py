"""`remotegpu.pyz`: the client in one file, which Python 3.11 or later runs without an installation."""

import io
import zipfile
from pathlib import Path
from typing import Final

import remotegpu_offload

# The modules that the client imports; a test imports the client from the file alone.
FILES: Final = (
    "__init__.py",
    *(
        f"reverse/{name}.py"
        for name in (
            *("__init__", "command", "confine", "ed25519", "errors", "fetch", "manifest", "opening"),
            *("runner", "store", "tree"),
        )
    ),
)
_MAIN: Final = "import sys\n\nfrom remotegpu_offload.reverse.command import main\n\nsys.exit(main())\n"
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)


def build() -> bytes:
    """Returns the zip file. The same sources give the same bytes."""
    package = Path(remotegpu_offload.__file__).parent
    contents = {f"remotegpu_offload/{name}": (package / name).read_bytes() for name in FILES}
    contents["__main__.py"] = _MAIN.encode()
    archive = io.BytesIO()
    archive.write(b"#!/usr/bin/env -S python3 -I\n")
    with zipfile.ZipFile(archive, "a", zipfile.ZIP_DEFLATED) as zipped:
        for name, content in contents.items():
            zipped.writestr(zipfile.ZipInfo(name, _EPOCH), content, zipfile.ZIP_DEFLATED)
    return archive.getvalue()
