"""Builds and controls the NVML stand-in (`nvml_stand_in.c`): a GPU that fails when a test requests it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

from support.system import DIST

_SOURCE: Final = Path(__file__).with_name("nvml_stand_in.c")


class NvmlStandIn:
    """A folder with the library and its orders. An appliance with `environment` and `options` loads it as NVML."""

    def __init__(self, folder: Path) -> None:
        native = DIST / "native"
        self._orders = folder / "orders"
        self._orders.mkdir(parents=True)
        os.mkfifo(self._orders / "xids")
        library = folder / "lib" / "libnvidia-ml.so.1"
        library.parent.mkdir()
        # Functions that the stand-in lacks are found in the software GPU's driver, which it is linked with.
        command = ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library), str(_SOURCE)]
        command += ["-Wl,-soname,libnvidia-ml.so.1", "-Wl,--no-as-needed", f"-Wl,-rpath,{native}"]
        subprocess.run([*command, str(native / "libcuda.so.1")], check=True)
        self.environment = {"LD_LIBRARY_PATH": str(library.parent), "NVML_STAND_IN": str(self._orders)}
        self.options = ("--backend", "cuda", "--driver", str(native / "libcuda.so.1"))

    def raise_xid(self, number: int) -> None:
        """Makes the driver report an XID. Blocks if the FIFO is full and no process reads it."""
        with (self._orders / "xids").open("r+b", buffering=0) as xids:
            xids.write(number.to_bytes(8, "little"))

    def set(self, **figures: int) -> None:
        """Sets values that NVML reports.

        They are `ecc`, `recovery` (an NVML_GPU_RECOVERY_ACTION), `remap_failed`, `lost`, `unwatched`, `utilization`,
        `memory_utilization` (percent), `temperature` (degrees Celsius), `power` (milliwatt), `memory_used` (bytes).
        """
        for name, value in figures.items():
            new = self._orders / f"{name}.new"
            new.write_text(str(value))
            new.rename(self._orders / name)

    def clear(self, *names: str) -> None:
        """Removes values, so that NVML no longer supports them."""
        for name in names:
            (self._orders / name).unlink()
