"""The bed's `python3`: a script that starts trixie's Python with trixie's loader.

That Python has the script as its own path, so that processes that it starts (multiprocessing, DataLoader, torchrun) use
the script too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

LIBRARIES: Final = "usr/lib/x86_64-linux-gnu"
# cuDNN or its stub, then Debian's libraries. OpenBLAS is listed, because only an installation links BLAS and LAPACK.
SEARCHED: Final = ("cudnn", f"{LIBRARIES}/openblas-pthread", LIBRARIES, f"{LIBRARIES}/openmpi/lib", "usr/lib")
PYTHON: Final = "usr/bin/python3.13"
SCRIPT: Final = "usr/bin/python3"


def script(bed: Path) -> str:
    """Returns the script.

    The program's own LD_LIBRARY_PATH comes first, because `remotegpu run` puts libcuda there. The loader gets the path
    as an argument and not by the variable, because Python may start programs of the machine, which have another C
    library.
    """
    searched = ":".join(str(bed / each) for each in SEARCHED)
    return (
        "#!/bin/sh\n"
        f"exec {bed}/usr/lib64/ld-linux-x86-64.so.2 --argv0 {bed / SCRIPT} \\\n"
        f'    --library-path "${{LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}}{searched}" \\\n'
        f'    {bed / PYTHON} "$@"\n'
    )


def lay(bed: Path) -> None:
    """Writes the script at the paths of the bed's Python, and links it as `python3` in the bed's folder."""
    for name in (SCRIPT, "usr/bin/python"):
        place = bed / name
        place.unlink(missing_ok=True)
        place.write_text(script(bed))
        place.chmod(0o755)
    link = bed / "python3"
    link.unlink(missing_ok=True)
    link.symlink_to(SCRIPT)
