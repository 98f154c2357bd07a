"""Changes a program's environment so that frameworks use one of our drivers. Pure."""

from remotegpu.paths import Dist


def prepend(environment: dict[str, str], name: str, path: str) -> None:
    """Puts a path before the others of a variable."""
    rest = environment.get(name)
    environment[name] = f"{path}:{rest}" if rest else path


def use_client(environment: dict[str, str], dist: Dist, *, software: bool) -> None:
    """Makes programs find the client's libraries. `software`: the appliance has a software GPU."""
    if software:
        keep_ptx(environment, dist)
    suit_frameworks(environment, dist)
    prepend(environment, "LD_LIBRARY_PATH", str(dist.client))


def keep_ptx(environment: dict[str, str], dist: Dist) -> None:
    """Makes frameworks keep PTX, which the software GPU executes, instead of machine code for a real GPU."""
    environment.setdefault("CUPY_COMPILE_WITH_PTX", "1")
    environment.setdefault("TRITON_PTXAS_PATH", str(dist.ptxas))
    environment.setdefault("TRITON_PTXAS_BLACKWELL_PATH", str(dist.ptxas))
    # Torch keeps on the disk what NVRTC made, under a key that says machine code, which with us is PTX.
    environment.setdefault("USE_PYTORCH_KERNEL_CACHE", "0")
    # Without nvJitLink, numba and cuda.core link with the driver. They find the real library in their own folder,
    # unless one of its name is loaded already; ours has none of its functions. The one of NVRTC's name passes each call
    # on to the real one, and gives PTX to programs that ask for machine code.
    for library in dist.stand_ins:
        prepend(environment, "LD_PRELOAD", str(library))


def suit_frameworks(environment: dict[str, str], dist: Dist) -> None:
    """Sets what docs/frameworks.md lists: for ranks of NCCL, and for JAX, which looks for GPUs."""
    environment.setdefault("NCCL_P2P_LEVEL", "SYS")
    environment.setdefault("NCCL_RUNTIME_CONNECT", "0")
    # Our client knows by this name the thread that serves ranks which do not reach each other's memory.
    environment.setdefault("NCCL_SET_THREAD_NAME", "1")
    paths = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = f"{paths}:{dist.frameworks}" if paths else str(dist.frameworks)
