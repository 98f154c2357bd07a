"""Unpacks Debian trixie's torch with CUDA 12.4 and its own Python into a folder, without root or chroot.

PYTHONPATH=tools python -m torch_bed FOLDER [--cudnn]

The result uses neither the machine's C library nor its Python. packages.txt and cudnn.txt in this folder list the
packages. The mirrors are those of apt's sources, or REMOTEGPU_DEBIAN_MIRROR. After an interruption, the next run
continues. `--cudnn` also fetches the real cuDNN; otherwise a stub refuses all of torch's calls of cuDNN.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from torch_bed import deb, fetch, launcher, packages, stub

LIST: Final = Path(__file__).parent / "packages.txt"
MARK: Final = ".installed"
UNPACKED_BYTES: Final = 4_200_000_000
CUDNN: Final = Path(__file__).parent / "cudnn.txt"
# A file that only the real cuDNN has.
REAL: Final = "libcudnn_graph.so.9"
CUDNN_BYTES: Final = 571_000_000
CUDNN_UNPACKED_BYTES: Final = 1_100_000_000
STEP: Final = 100_000_000


class Progress:
    """Prints the progress every 100 MB."""

    def __init__(self, whole: int) -> None:
        self.whole, self.came = whole, 0

    def __call__(self, size: int) -> None:
        before, self.came = self.came, self.came + size
        if before // STEP != self.came // STEP:
            print(f"    {packages.megabytes(self.came)} of {packages.megabytes(self.whole)}", flush=True)


def room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise SystemExit(
            f"{folder} has {packages.megabytes(free)} free, and the torch bed needs {packages.megabytes(needed)}; "
            "make room or link target/torch-bed to another disk"
        )


def fetch_all(wanted: list[packages.Package], folder: Path) -> list[Path]:
    mirrors = packages.bases(fetch.sources(), os.environ.get("REMOTEGPU_DEBIAN_MIRROR", ""))
    if not mirrors:
        raise SystemExit(
            "apt's sources name no mirror of Debian; set REMOTEGPU_DEBIAN_MIRROR to the address of one, "
            "the part before pool/"
        )
    missing = [each for each in wanted if not (folder / each.stored).exists()]
    progress, using, failed = Progress(sum(each.size for each in missing)), fetch.opener(), []
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(fetch.fetch, each, mirrors, folder, using, progress) for each in missing]
        for each in waiting:
            try:
                each.result()
            except fetch.NotFetchedError as error:
                failed.append(str(error))
    if failed:
        print(*failed, sep="\n", file=sys.stderr)
        raise SystemExit(
            "run it again where a mirror only did not answer; where a version is gone, another mirror "
            "(REMOTEGPU_DEBIAN_MIRROR) may have it, or `python -m torch_bed.resolve` makes the list anew"
        )
    return [folder / each.stored for each in wanted]


def unpack(wanted: list[packages.Package], final: Path) -> None:
    """Fetches and unpacks all packages next to the folder. The folder exists only when it is complete."""
    size = sum(each.size for each in wanted)
    print(
        f"==> torch 2.6 with CUDA 12.4 of Debian trixie into {final}: {packages.megabytes(size)} to fetch, "
        f"{packages.megabytes(UNPACKED_BYTES)} on the disk",
        flush=True,
    )
    fetched, made = final.with_name(f"{final.name}.packages"), final.with_name(f"{final.name}.new")
    fetched.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    room(made, size + UNPACKED_BYTES - sum(file.stat().st_size for file in fetched.iterdir()))
    files = fetch_all(wanted, fetched)
    print("    unpacking", flush=True)
    try:
        for file in files:
            deb.unpack(file, made)
    except deb.NoPackageError as error:
        raise SystemExit(str(error)) from error
    # torch.linalg opens the library by this name, which only the development package contains.
    link = made / launcher.LIBRARIES / "libtorch_cuda_linalg.so"
    link.symlink_to(f"{link.name}.2.6.0")
    shutil.rmtree(final, ignore_errors=True)
    (made / MARK).write_text(LIST.read_text())
    made.rename(final)
    shutil.rmtree(fetched)


def lay_cudnn(final: Path, real: bool) -> None:
    """Makes the folder `cudnn`, which the loader searches first: the real library or the stub. Keeps a real one."""
    place, libraries = final / "cudnn", final / launcher.LIBRARIES
    if (place / REAL).exists() or (not real and (place / stub.NAME).exists()):
        return
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    if not real:
        stub.build([libraries / name for name in stub.ASKING], place / stub.NAME)
        return
    print(f"==> cuDNN 9.5.1: {packages.megabytes(CUDNN_BYTES)} to fetch", flush=True)
    room(place, CUDNN_BYTES + CUDNN_UNPACKED_BYTES)
    with tempfile.TemporaryDirectory(dir=final) as folder:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        named = ["--require-hashes", "--requirement", str(CUDNN)]
        if subprocess.run([*pip, "--no-cache-dir", "--target", folder, *named], check=False).returncode:
            raise SystemExit(
                f"pip did not install what {CUDNN.name} names by its SHA-256, as it says above: run it again where the "
                "index only did not answer; a file with another sum is not that cuDNN, and nothing of it was kept"
            )
        # The library whose presence shows that all are there is moved last.
        found = sorted((Path(folder) / "nvidia" / "cudnn" / "lib").glob("*.so*"), key=lambda each: each.name == REAL)
        for library in found:
            library.rename(place / library.name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cudnn", action="store_true")
    arguments = parser.parse_args()
    # The folder may be a link to another disk.
    final: Path = arguments.folder.resolve()
    text, mark = LIST.read_text(), final / MARK
    if final.exists() and not mark.exists() and any(final.iterdir()):
        raise SystemExit(f"{final} has files that are not of a torch bed: name a folder that is empty or not there")
    if not mark.exists() or mark.read_text() != text:
        unpack(packages.parse(text), final)
    try:
        lay_cudnn(final, arguments.cudnn)
    except stub.NoCompilerError as error:
        raise SystemExit(str(error)) from error
    launcher.lay(final)
    return 0


if __name__ == "__main__":
    sys.exit(main())
