"""Prints as JSON how many clusters there can be: `active_clusters.py IMAGE`. For kernels of the image and for none."""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "programs"))

from cu import cu, ok, start

CLUSTER = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
NON_PORTABLE = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED


def config_of(blocks, threads, shared):
    attribute = cu.CUlaunchAttribute()
    attribute.id = CLUSTER
    attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = blocks, 1, 1
    config = cu.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = blocks or 1, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
    config.sharedMemBytes, config.hStream = shared, 0
    config.attrs, config.numAttrs = [attribute], 1
    return config


def asked(function, threads=128, shared=0):
    """Code and number for each size of clusters."""
    found = {}
    for blocks in (0, 1, 2, 3, 8, 16, 32):
        code, number = cu.cuOccupancyMaxActiveClusters(function, config_of(blocks, threads, shared))
        found[str(blocks)] = [int(code), number if not int(code) else None]
    code, most = cu.cuOccupancyMaxPotentialClusterSize(function, config_of(1, threads, shared))
    return found | {"most": [int(code), most]}


start()
module = ok(cu.cuModuleLoadData(pathlib.Path(sys.argv[1]).read_bytes() + b"\0"))
plain = ok(cu.cuModuleGetFunction(module, b"dynamic"))
none = cu.CUfunction(0)
found = {
    "none": asked(none),
    "none, with 100 KiB": asked(none, shared=100 << 10),
    "none, too large": asked(none, threads=1025),
    "kernel": asked(plain),
}
ok(cu.cuFuncSetAttribute(plain, NON_PORTABLE, 1))
found["kernel of any size"] = asked(plain)
blocks = [
    int(cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(which, 128, 0)[0]) for which in (none, cu.CUfunction(4711))
]
clusters = int(cu.cuOccupancyMaxActiveClusters(cu.CUfunction(4711), config_of(2, 128, 0))[0])
found["codes of what needs a function"] = [*blocks, clusters]
each = ok(cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(plain, 128, 0))
processors = ok(cu.cuDeviceGetAttribute(cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0))
threads = ok(cu.cuDeviceGetAttribute(cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 0))
found["blocks"] = {"kernel": each * processors, "none": threads // 128 * processors}
ok(cu.cuCtxSynchronize())
print(json.dumps(found))
