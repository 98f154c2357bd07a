"""Changes the environment of a program so that its frameworks use one of our drivers. Pure."""

from remotegpu.paths import Dist


def prepend(environment: dict[str, str], name: str, path: str) -> None:
    """Adds a path before the other paths of a variable."""
    rest = environment.get(name)
    environment[name] = f"{path}:{rest}" if rest else path


def use_client(environment: dict[str, str], dist: Dist, *, software: bool) -> None:
    """Makes a program find the client's libraries. `software` says that the appliance has a software GPU."""
    if software:
        keep_ptx(environment, dist)
    suit_frameworks(environment, dist)
    prepend(environment, "LD_LIBRARY_PATH", str(dist.client))


def keep_ptx(environment: dict[str, str], dist: Dist) -> None:
    """Makes frameworks load PTX, which the software GPU executes, instead of machine code for a real GPU."""
    environment.setdefault("CUPY_COMPILE_WITH_PTX", "1")
    environment.setdefault("TRITON_PTXAS_PATH", str(dist.ptxas))
    environment.setdefault("TRITON_PTXAS_BLACKWELL_PATH", str(dist.ptxas))
    # Torch caches the output of NVRTC on disk under a key for machine code, but with our libraries the output is PTX.
    environment.setdefault("USE_PYTORCH_KERNEL_CACHE", "0")
    # Preloads our libraries: a program then uses the loaded library in place of the one in its own folder. Ours with
    # the name of nvJitLink has no functions, so that numba and cuda.core link with the driver. Ours with the name of
    # NVRTC forwards each call to the real one, and returns PTX to programs that ask for machine code.
    for library in dist.stand_ins:
        prepend(environment, "LD_PRELOAD", str(library))


def suit_frameworks(environment: dict[str, str], dist: Dist) -> None:
    """Sets the variables that docs/frameworks.md lists, for NCCL and for the detection of GPUs by JAX."""
    environment.setdefault("NCCL_P2P_LEVEL", "SYS")
    environment.setdefault("NCCL_RUNTIME_CONNECT", "0")
    # By its name our client identifies NCCL's thread for ranks that cannot access each other's memory.
    environment.setdefault("NCCL_SET_THREAD_NAME", "1")
    paths = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = f"{paths}:{dist.frameworks}" if paths else str(dist.frameworks)
