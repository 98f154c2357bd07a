"""Builds the answers to the kubelet for containers: mounts of the client's libraries at the paths where programs look.

A program finds the client without a changed command or variable.
"""

from pathlib import Path, PurePosixPath
from typing import Final

from remotegpu.api.kubernetes import LOCAL
from remotegpu_deviceplugin._generated.deviceplugin_pb2 import ContainerAllocateResponse, Mount

# The preloaded library has the same path compiled in (tools/pod.sh).
FOLDER: Final = PurePosixPath("/usr/lib/remotegpu")
PRELOAD: Final = "ld.so.preload"
PRELOAD_PTX: Final = "ld.so.preload.ptx"
# The default library folders of glibc: Debian's, then the one of Fedora, openSUSE and Arch. Programs that search for
# the file themselves also search these folders.
_LIBRARY_FOLDERS: Final = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64")
_LIBRARIES: Final = ("libcuda.so.1", "libnvidia-ml.so.1")


def answer(files: Path, local: Path | None, *, keep_ptx: bool) -> ContainerAllocateResponse:
    """Builds the answer for a container with a share.

    `files` is the node's folder with one version of the client's files. `local` is the folder with the local sockets of
    the node's appliances, or None. `keep_ptx` is True if every GPU is a software GPU.

    The order of the mounts matters. In an image where /usr/lib64 is a link to /usr/lib, the glibc file must be mounted
    after the musl file, which then lies at the same path.
    """
    mounts = [
        ("/etc/ld.so.preload", PRELOAD_PTX if keep_ptx else PRELOAD),
        ("/usr/bin/nvidia-smi", "bin/nvidia-smi"),
        # JAX uses no GPU if this file does not exist.
        ("/dev/nvidiactl", "nvidiactl"),
        (str(FOLDER), "lib"),
        ("/usr/lib/libcuda.so.1", "musl/libcuda.so.1"),
        *((f"{folder}/{name}", f"lib/{name}") for folder in _LIBRARY_FOLDERS for name in _LIBRARIES),
    ]
    sources = [(path, str(files / file)) for path, file in mounts]
    # The local sockets let the client share page-locked memory with an appliance on the same node. This mount is not a
    # volume of the pod, so the pod needs no permission for hostPath.
    sources += [(LOCAL, str(local))] if local else []
    return ContainerAllocateResponse(
        envs=_variables(keep_ptx=keep_ptx),
        mounts=[Mount(container_path=path, host_path=source, read_only=True) for path, source in sources],
    )


def answer_to_appliance(local: Path | None) -> ContainerAllocateResponse:
    """Builds the answer for an appliance: a mount of the folder for local sockets, or no mount if `local` is None."""
    mounts = [Mount(container_path=LOCAL, host_path=str(local), read_only=False)] if local else []
    return ContainerAllocateResponse(mounts=mounts)


def _variables(*, keep_ptx: bool) -> dict[str, str]:
    """Returns the environment variables for a container.

    No variable is needed to find the client, except for Triton: `ldconfig -p` does not list mounted files.
    """
    variables = {"NVIDIA_VISIBLE_DEVICES": "void", "TRITON_LIBCUDA_PATH": str(FOLDER)}
    # The same settings as in `remotegpu run`: NCCL's ranks use peer memory or fail at the start. Variables of the pod
    # override these.
    variables |= {"NCCL_P2P_LEVEL": "SYS", "NCCL_RUNTIME_CONNECT": "0", "NCCL_SET_THREAD_NAME": "1"}
    if keep_ptx:
        # The same settings as in `remotegpu run` for a software GPU, which executes PTX.
        ptxas = str(FOLDER / "ptxas")
        variables |= {"CUPY_COMPILE_WITH_PTX": "1", "TRITON_PTXAS_PATH": ptxas, "TRITON_PTXAS_BLACKWELL_PATH": ptxas}
        variables |= {"USE_PYTORCH_KERNEL_CACHE": "0"}
    return variables
