"""The whole answer by which the plugin tells the kubelet what a container gets."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf.json_format import MessageToDict

from remotegpu_deviceplugin.injection import answer

FILES = Path("/var/lib/remotegpu/client/0123456789abcdef")
LOCAL = Path("/var/lib/remotegpu/local")
# In this order: on an image whose /usr/lib64 is /usr/lib, the client covers what is for musl.
MOUNTS = {
    "/etc/ld.so.preload": "ld.so.preload",
    "/usr/bin/nvidia-smi": "bin/nvidia-smi",
    "/dev/nvidiactl": "nvidiactl",
    "/usr/lib/remotegpu": "lib",
    "/usr/lib/libcuda.so.1": "musl/libcuda.so.1",
    "/usr/lib/x86_64-linux-gnu/libcuda.so.1": "lib/libcuda.so.1",
    "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1": "lib/libnvidia-ml.so.1",
    "/usr/lib64/libcuda.so.1": "lib/libcuda.so.1",
    "/usr/lib64/libnvidia-ml.so.1": "lib/libnvidia-ml.so.1",
}
VARIABLES = {
    "NVIDIA_VISIBLE_DEVICES": "void",
    "TRITON_LIBCUDA_PATH": "/usr/lib/remotegpu",
    "NCCL_P2P_LEVEL": "SYS",
    "NCCL_RUNTIME_CONNECT": "0",
    "NCCL_SET_THREAD_NAME": "1",
}
PTX = {
    "CUPY_COMPILE_WITH_PTX": "1",
    "TRITON_PTXAS_PATH": "/usr/lib/remotegpu/ptxas",
    "TRITON_PTXAS_BLACKWELL_PATH": "/usr/lib/remotegpu/ptxas",
    "USE_PYTORCH_KERNEL_CACHE": "0",
}


@pytest.mark.parametrize(
    ("keep_ptx", "mounts", "variables"),
    [(False, MOUNTS, VARIABLES), (True, MOUNTS | {"/etc/ld.so.preload": "ld.so.preload.ptx"}, VARIABLES | PTX)],
)
def test_the_whole_answer(keep_ptx: bool, mounts: dict[str, str], variables: dict[str, str]) -> None:
    assert MessageToDict(answer(FILES, LOCAL, keep_ptx=keep_ptx)) == {
        "envs": variables,
        "mounts": [
            *(
                {"containerPath": path, "hostPath": f"{FILES}/{file}", "readOnly": True}
                for path, file in mounts.items()
            ),
            # The sockets of appliances on the same node.
            {"containerPath": "/run/remotegpu", "hostPath": str(LOCAL), "readOnly": True},
        ],
    }
