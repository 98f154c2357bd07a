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
