"""Orders for the NVML stand-in (`nvml_stand_in.c`): a GPU that fails when a test says so."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

from support.system import DIST

_SOURCE: Final = Path(__file__).with_name("nvml_stand_in.c")


class NvmlStandIn:
    """A folder with the library and its orders; `environment` is that of an appliance which loads it as NVML."""

    def __init__(self, folder: Path) -> None:
        native = DIST / "native"
        self._orders = folder / "orders"
        self._orders.mkdir(parents=True)
        os.mkfifo(self._orders / "xids")
        library = folder / "lib" / "libnvidia-ml.so.1"
        library.parent.mkdir()
        # What it does not define is found in what it depends on: the software GPU's driver has NVML as well.
        command = ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library), str(_SOURCE)]
        command += ["-Wl,-soname,libnvidia-ml.so.1", "-Wl,--no-as-needed", f"-Wl,-rpath,{native}"]
        subprocess.run([*command, str(native / "libcuda.so.1")], check=True)
        self.environment = {"LD_LIBRARY_PATH": str(library.parent), "NVML_STAND_IN": str(self._orders)}
        self.options = ("--backend", "cuda", "--driver", str(native / "libcuda.so.1"))

    def raise_xid(self, number: int) -> None:
        """The driver tells of it. Somebody has to listen: else this blocks once the FIFO is full."""
        with (self._orders / "xids").open("r+b", buffering=0) as xids:
            xids.write(number.to_bytes(8, "little"))

    def set(self, **figures: int) -> None:
        """`ecc`, `recovery` (an NVML_GPU_RECOVERY_ACTION), `remap_failed`, `lost`, `unwatched`, `utilization`,
        `memory_utilization` (percent), `temperature` (degrees Celsius), `power` (milliwatt), `memory_used` (bytes)."""
        for name, value in figures.items():
            new = self._orders / f"{name}.new"
            new.write_text(str(value))
            new.rename(self._orders / name)

    def clear(self, *names: str) -> None:
        """NVML does not support these any more."""
        for name in names:
            (self._orders / name).unlink()
