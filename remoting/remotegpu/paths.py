"""Paths of the built programs and libraries."""

import os
from dataclasses import dataclass
from pathlib import Path

from remotegpu.api.names import DIST_ENV


class NotBuiltError(RuntimeError):
    """Raised if a built program or library is missing."""


@dataclass(frozen=True, slots=True)
class Dist:
    """The folder that the build fills."""

    root: Path

    @property
    def bin(self) -> Path:
        return self.root / "bin"

    @property
    def client(self) -> Path:
        """The folder with the client's libcuda.so.1."""
        return self.root / "client"

    @property
    def native(self) -> Path:
        """The folder with the software GPU's libcuda.so.1."""
        return self.root / "native"

    @property
    def trace(self) -> Path:
        """The folder with the recorder's libcuda.so.1."""
        return self.root / "trace"

    @property
    def frameworks(self) -> Path:
        """The folder with Python modules that frameworks load as plugins."""
        return self.root / "frameworks"

    @property
    def pod(self) -> Path:
        """The folder that is mounted into containers. Raises NotBuiltError."""
        return _existing(self.root / "pod")

    @property
    def ptxas(self) -> Path:
        """The replacement for ptxas that Triton runs, which returns the PTX unchanged."""
        return self.native / "ptxas"

    @property
    def stand_ins(self) -> list[Path]:
        """Libraries to preload in place of compilers that would generate machine code instead of PTX."""
        return sorted((self.native / "stand-ins").glob("*.so.*"))

    @property
    def dashboard(self) -> Path:
        """The folder with third-party files of the dashboard."""
        return self.root / "dashboard"

    @property
    def sandbox(self) -> Path:
        """The library with which an acceptor isolates itself. Raises NotBuiltError."""
        return _existing(self.root / "lib" / "libremotegpu_sandbox.so")

    def program(self, name: str) -> Path:
        return _existing(self.bin / name)

    def library(self, folder: Path) -> Path:
        return _existing(folder / "libcuda.so.1")


def find_dist() -> Dist:
    """Returns the folder of REMOTEGPU_DIST, else that in the installed package, else the repository's build folder."""
    if given := os.environ.get(DIST_ENV):
        return Dist(Path(given).resolve())
    here = Path(__file__).resolve().parent
    packaged = here / "_dist"
    return Dist(packaged if packaged.is_dir() else here.parents[1] / "target" / "dist")


def _existing(path: Path) -> Path:
    if not path.exists():
        raise NotBuiltError(
            f"{path} does not exist: build it with `make build`, or point {DIST_ENV} at a folder that has it"
        )
    return path
