"""How an appliance works: values in a GPUPool, and options of `remotegpu appliance`."""

from enum import StrEnum


class Backend(StrEnum):
    SOFTWARE = "software"
    CUDA = "cuda"


class Landlock(StrEnum):
    """The behaviour of appliances on a kernel without Landlock."""

    REQUIRE = "Require"
    WARN = "Warn"


class ComputeMode(StrEnum):
    """How the time of a GPU is divided among its shares."""

    SHARED = "Shared"  # the driver decides: no share has a guarantee
    TURNS = "Turns"  # by the shares: one after another


class WorkerWrites(StrEnum):
    """The files that a worker may change whose driver opens some, as NVIDIA's does."""

    ANYWHERE = "Anywhere"  # any file that its user may write and that is not hidden
    DEVICES = "Devices"  # device nodes alone


class Profile(StrEnum):
    """Kinds of software GPUs: the values of REMOTEGPU_SOFTGPU_PROFILE."""

    NORMAL = "normal"
    HOSTILE = "hostile"
    SLOW = "slow"
    NULL_H100 = "null-h100"

    @property
    def is_null(self) -> bool:
        """Whether no kernel runs: such a GPU takes machine code, and all its results are meaningless."""
        return self is Profile.NULL_H100

    @property
    def memory_bytes(self) -> int:
        """The default memory of each GPU. A null GPU's memory is little more than addresses."""
        return 80 << 30 if self.is_null else 8 << 30

    @classmethod
    def of(cls, text: str | None) -> "Profile":
        """Reads the variable like the software GPU: an unknown value is normal."""
        return cls(text) if text in list(cls) else cls.NORMAL
