"""The bed's `python3`: a script that starts trixie's Python by trixie's loader.

That Python takes the script for itself, so that the processes it starts (multiprocessing, DataLoader, torchrun) are
started in the same way.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

LIBRARIES: Final = "usr/lib/x86_64-linux-gnu"
# cuDNN or its stub; then Debian's, whose BLAS and LAPACK a link chooses that only an installation makes.
SEARCHED: Final = ("cudnn", f"{LIBRARIES}/openblas-pthread", LIBRARIES, f"{LIBRARIES}/openmpi/lib", "usr/lib")
PYTHON: Final = "usr/bin/python3.13"
SCRIPT: Final = "usr/bin/python3"


def script(bed: Path) -> str:
    """The program's own LD_LIBRARY_PATH stands first: there `remotegpu run` puts libcuda. The loader is told the path
    by its argument, since programs of the machine that Python starts have another C library.
    """
    searched = ":".join(str(bed / each) for each in SEARCHED)
    return (
        "#!/bin/sh\n"
        f"exec {bed}/usr/lib64/ld-linux-x86-64.so.2 --argv0 {bed / SCRIPT} \\\n"
        f'    --library-path "${{LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}}{searched}" \\\n'
        f'    {bed / PYTHON} "$@"\n'
    )


def lay(bed: Path) -> None:
    """Writes the script where the bed has its Python, and links it to where a person looks for it."""
    for name in (SCRIPT, "usr/bin/python"):
        place = bed / name
        place.unlink(missing_ok=True)
        place.write_text(script(bed))
        place.chmod(0o755)
    link = bed / "python3"
    link.unlink(missing_ok=True)
    link.symlink_to(SCRIPT)
