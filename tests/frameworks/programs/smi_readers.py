"""Unmodified tools read our `nvidia-smi`, or NVML through NVIDIA's own Python helpers, on a share."""

from __future__ import annotations

import json
import subprocess
import sys


def gputil():
    """GPUtil starts `nvidia-smi` with twelve fields; an output that it cannot parse means no GPU to it."""
    import GPUtil

    (gpu,) = GPUtil.getGPUs()
    assert gpu.memoryTotal == 2048 and gpu.uuid.startswith("GPU-") and gpu.display_mode == "Disabled"
    assert GPUtil.getAvailable(maxLoad=1.1, maxMemory=1.1) == [0]


def pynvml_smi():
    """`pynvml_utils.nvidia_smi` is the example of the package pynvml. Its query of everything fails on any GPU with
    newer wheels of nvidia-ml-py, by a name that they lack.
    """
    from pynvml_utils import nvidia_smi

    smi = nvidia_smi.getInstance()
    asked = smi.DeviceQuery("memory.free, memory.total, utilization.gpu, compute_mode, pci.bus_id")
    assert asked["gpu"][0]["fb_memory_usage"]["total"] == 2048, asked


def gpustat():
    shown = subprocess.run([sys.executable, "-m", "gpustat", "--json"], check=True, capture_output=True, text=True)
    assert json.loads(shown.stdout)["gpus"][0]["memory.total"] == 2048


def nvitop():
    command = [sys.executable, "-m", "nvitop", "--once", "--ascii"]
    assert "/ 2048MiB" in subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    for case in sys.argv[1:]:
        globals()[case]()
        print(case)
