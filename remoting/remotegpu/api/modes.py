"""How an appliance works: what a GPUPool says, and the options of `remotegpu appliance`."""

from enum import StrEnum


class Backend(StrEnum):
    SOFTWARE = "software"
    CUDA = "cuda"


class Landlock(StrEnum):
    """What appliances do on a kernel without Landlock."""

    REQUIRE = "Require"
    WARN = "Warn"


class ComputeMode(StrEnum):
    """How the time of a GPU is divided among its shares."""

    SHARED = "Shared"  # as the driver does it: nobody is guaranteed anything
    TURNS = "Turns"  # by the shares: one after another


class WorkerWrites(StrEnum):
    """Which files a worker may change whose driver opens some, as NVIDIA's does."""

    ANYWHERE = "Anywhere"  # what its user may and is not hidden
    DEVICES = "Devices"  # device nodes alone


class Profile(StrEnum):
    """What software GPUs can be like: the values of REMOTEGPU_SOFTGPU_PROFILE."""

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
        """Of each GPU, unless somebody says otherwise. That of a null GPU is little more than addresses."""
        return 80 << 30 if self.is_null else 8 << 30

    @classmethod
    def of(cls, text: str | None) -> "Profile":
        """As the software GPU reads it: what it does not know is normal."""
        return cls(text) if text in list(cls) else cls.NORMAL
