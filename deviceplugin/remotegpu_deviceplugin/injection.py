"""The kubelet's answer for a container: mounts that put the client where any program finds it, with no variable set and
no command changed."""

from pathlib import Path, PurePosixPath
from typing import Final

from remotegpu.api.kubernetes import LOCAL
from remotegpu_deviceplugin._generated.deviceplugin_pb2 import ContainerAllocateResponse, Mount

# The same folder is built into the preloaded library (tools/pod.sh).
FOLDER: Final = PurePosixPath("/usr/lib/remotegpu")
PRELOAD: Final = "ld.so.preload"
PRELOAD_PTX: Final = "ld.so.preload.ptx"
# Where glibc looks by default: Debian's layout, then that of Fedora, openSUSE and Arch. A program that looks for the
# file itself finds it too.
_LIBRARY_FOLDERS: Final = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64")
_LIBRARIES: Final = ("libcuda.so.1", "libnvidia-ml.so.1")


def answer(files: Path, local: Path | None, *, keep_ptx: bool) -> ContainerAllocateResponse:
    """Builds the answer for a container with a share.

    `files` is one version of the client's files on the node, `local` the folder of its appliances' sockets. `keep_ptx`:
    every GPU is a software GPU.

    The order counts: where /usr/lib64 is a link to /usr/lib, the client's file must be mounted over the one for musl.
    """
    mounts = [
        ("/etc/ld.so.preload", PRELOAD_PTX if keep_ptx else PRELOAD),
        ("/usr/bin/nvidia-smi", "bin/nvidia-smi"),
        # JAX looks for this file, and uses no GPU where there is none.
        ("/dev/nvidiactl", "nvidiactl"),
        (str(FOLDER), "lib"),
        ("/usr/lib/libcuda.so.1", "musl/libcuda.so.1"),
        *((f"{folder}/{name}", f"lib/{name}") for folder in _LIBRARY_FOLDERS for name in _LIBRARIES),
    ]
    sources = [(path, str(files / file)) for path, file in mounts]
    # To share page-locked memory with an appliance on the same node. What is mounted so is no volume of the pod, which
    # needs no right to hostPath.
    sources += [(LOCAL, str(local))] if local else []
    return ContainerAllocateResponse(
        envs=_variables(keep_ptx=keep_ptx),
        mounts=[Mount(container_path=path, host_path=source, read_only=True) for path, source in sources],
    )


def answer_to_appliance(local: Path | None) -> ContainerAllocateResponse:
    """Builds the answer for an appliance: the folder in which appliances of this node put their sockets; no mount where
    the node's disk takes none."""
    mounts = [Mount(container_path=LOCAL, host_path=str(local), read_only=False)] if local else []
    return ContainerAllocateResponse(mounts=mounts)


def _variables(*, keep_ptx: bool) -> dict[str, str]:
    """Returns the variables for a container. None is needed to find the client. Triton asks `ldconfig -p`, which does
    not list mounts."""
    variables = {"NVIDIA_VISIBLE_DEVICES": "void", "TRITON_LIBCUDA_PATH": str(FOLDER)}
    # As `remotegpu run` does: ranks of NCCL use each other's memory or fail at their start. What the pod sets wins.
    variables |= {"NCCL_P2P_LEVEL": "SYS", "NCCL_RUNTIME_CONNECT": "0", "NCCL_SET_THREAD_NAME": "1"}
    if keep_ptx:
        # As `remotegpu run` does for a software GPU, which executes PTX.
        ptxas = str(FOLDER / "ptxas")
        variables |= {"CUPY_COMPILE_WITH_PTX": "1", "TRITON_PTXAS_PATH": ptxas, "TRITON_PTXAS_BLACKWELL_PATH": ptxas}
        variables |= {"USE_PYTORCH_KERNEL_CACHE": "0"}
    return variables
