"""Modes of an appliance: values in the spec of a GPUPool, and values of options of `remotegpu appliance`."""

from enum import StrEnum


class Backend(StrEnum):
    SOFTWARE = "software"
    CUDA = "cuda"


class Landlock(StrEnum):
    """The behaviour of appliances on a kernel without Landlock."""

    REQUIRE = "Require"
    WARN = "Warn"


class ComputeMode(StrEnum):
    """The way in which a GPU's time is divided among its shares."""

    SHARED = "Shared"  # the driver decides: no share has a guarantee
    TURNS = "Turns"  # shares run one after another, each for its part of the time


class WorkerWrites(StrEnum):
    """The files that a worker may change if its driver opens files, as NVIDIA's does."""

    ANYWHERE = "Anywhere"  # any file that its user may write and that is not hidden
    DEVICES = "Devices"  # only device nodes


class Profile(StrEnum):
    """Kinds of software GPUs: the values of REMOTEGPU_SOFTGPU_PROFILE."""

    NORMAL = "normal"
    HOSTILE = "hostile"
    SLOW = "slow"
    NULL_H100 = "null-h100"

    @property
    def is_null(self) -> bool:
        """Whether the GPU runs no kernel. A null GPU accepts machine code, and its results have no meaning."""
        return self is Profile.NULL_H100

    @property
    def memory_bytes(self) -> int:
        """The default memory of each GPU in bytes. A null GPU mostly reserves addresses and uses little memory."""
        return 80 << 30 if self.is_null else 8 << 30

    @classmethod
    def of(cls, text: str | None) -> "Profile":
        """Reads the variable as the software GPU does: an unknown value means NORMAL."""
        return cls(text) if text in list(cls) else cls.NORMAL


def default_sessions_per_gpu(backend: str) -> int:
    """Returns the default limit. On a real GPU each allowed session reserves half a gigabyte for a context."""
    return 16 if backend == "cuda" else 128
