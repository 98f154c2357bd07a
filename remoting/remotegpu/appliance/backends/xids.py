"""Classifies XIDs, the NVIDIA driver's error numbers, by their effect on a shared GPU. Pure.

The table follows the immediate action of NVIDIA's catalogue for A100 and newer GPUs, "Analyzing Xid Errors with the Xid
Catalog" (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html), and the XIDs that NVIDIA's device plugin
ignores (NVIDIA/k8s-device-plugin at 02597b9, internal/rm/health.go: 13, 31, 43, 45, 68, 109). If the two sources
differ, or if both a program and a broken GPU can raise an XID, a test of the GPU decides: a tenant must not be able to
take a GPU from the others.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

CUDA_ERROR_DEVICE_UNAVAILABLE: Final = 46
CUDA_ERROR_ECC_UNCORRECTABLE: Final = 214


class Effect(Enum):
    PROGRAM = "the error of one program, which its own driver tells it: nothing else happens"
    SUSPECT = "perhaps of a program, perhaps of the GPU: the GPU is tested"
    UNFIT = "nothing new until a test passes; sessions go on, and the driver ends what the error has hit"
    RESET = "nothing new until the GPU was reset; its sessions end"


@dataclass(frozen=True, slots=True)
class Xid:
    number: int
    effect: Effect
    what: str = ""  # for people
    code: int = CUDA_ERROR_DEVICE_UNAVAILABLE  # the error with which sessions end

    def __str__(self) -> str:
        return f"XID {self.number} ({self.what})" if self.what else f"XID {self.number}"


def classify(number: int) -> Xid:
    """Returns the XID's entry. An unlisted number is suspect: new drivers know more numbers."""
    return _KNOWN.get(number, Xid(number, Effect.SUSPECT))


_PROGRAM: Final = {
    8: "the GPU stopped processing",
    11: "invalid commands",
    13: "graphics engine exception",
    25: "invalid or illegal commands",
    31: "memory page fault",
    32: "invalid or corrupted commands",
    37: "driver firmware error",
    43: "a program's fault stopped it",
    45: "cleanup after an earlier error",
    68: "video processor exception",
    69: "graphics engine class error",
    # The recovery action changed. The appliance then asks the driver for the new one.
    154: "the recovery action changed",
}
_UNFIT: Final = {
    63: "a row of memory will be remapped",
    74: "NVLink error",
    92: "many corrected memory errors",
    94: "contained memory error",
}
_RESET: Final = {
    46: "the GPU timed out",
    62: "the power controller halted",
    79: "the GPU has fallen off the bus",
    110: "security fault",
    119: "the GPU's system processor does not answer",
    120: "error of the GPU's system processor",
    136: "NVLink training failed",
    143: "the GPU did not initialise",
    155: "NVLink error",
    158: "fatal timeout",
}
_RESET_MEMORY: Final = {
    48: "uncorrectable memory error",
    64: "a row of memory cannot be remapped",
    95: "uncontained memory error",
    140: "unrecovered memory error",
    156: "a part of the GPU was retired",
}
_KNOWN: Final = {
    xid.number: xid
    for xid in (
        *(Xid(number, Effect.PROGRAM, what) for number, what in _PROGRAM.items()),
        *(Xid(number, Effect.UNFIT, what) for number, what in _UNFIT.items()),
        *(Xid(number, Effect.RESET, what) for number, what in _RESET.items()),
        *(Xid(number, Effect.RESET, what, CUDA_ERROR_ECC_UNCORRECTABLE) for number, what in _RESET_MEMORY.items()),
        Xid(109, Effect.SUSPECT, "context switch timeout"),
    )
}
