"""Prints as JSON the codes of right and wrong launches: `launch_rules.py IMAGE`. None may leave an error behind."""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "programs"))

from cu import CudaError, ctypes, cu, ok, start

ATTRIBUTES = cu.CUfunction_attribute
CLUSTER = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
COOPERATIVE = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE

start()
module = ok(cu.cuModuleLoadData(pathlib.Path(sys.argv[1]).read_bytes() + b"\0"))
memory = ok(cu.cuMemAlloc(4096))


def cluster_of(blocks):
    attribute = cu.CUlaunchAttribute()
    attribute.id = CLUSTER
    attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = blocks, 1, 1
    return attribute


def cooperative():
    attribute = cu.CUlaunchAttribute()
    attribute.id = COOPERATIVE
    attribute.value.cooperative = 1
    return attribute


def code(name, grid, block, shared=0, attributes=()):
    config = cu.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid
    config.blockDimX, config.blockDimY, config.blockDimZ = block
    config.sharedMemBytes, config.hStream = shared, 0
    config.attrs, config.numAttrs = list(attributes), len(attributes)
    function = ok(cu.cuModuleGetFunction(module, name.encode()))
    (at_the_call,) = cu.cuLaunchKernelEx(config, function, ((int(memory),), (ctypes.c_uint64,)), 0)
    ok(cu.cuCtxSynchronize())
    return int(at_the_call)


def allow(name, attribute, value):
    try:
        ok(cu.cuFuncSetAttribute(ok(cu.cuModuleGetFunction(module, name.encode())), attribute, value))
    except CudaError as error:
        return error.code
    return 0


found = {
    "cooperative launches are offered": ok(
        cu.cuDeviceGetAttribute(cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 0)
    ),
    "as it is": code("dynamic", (4, 1, 1), (128, 1, 1)),
    "no blocks": code("dynamic", (0, 1, 1), (128, 1, 1)),
    "no threads": code("dynamic", (1, 1, 1), (0, 1, 1)),
    "too many rows of blocks": code("dynamic", (1, 65536, 1), (128, 1, 1)),
    "too many threads": code("dynamic", (1, 1, 1), (1025, 1, 1)),
    "more threads than bounds allow": code("bounded", (1, 1, 1), (193, 1, 1)),
    "another block than required": code("required", (1, 1, 1), (64, 1, 1)),
    "the block required": code("required", (1, 1, 1), (128, 1, 1)),
    "48 KiB of dynamic memory": code("dynamic", (1, 1, 1), (128, 1, 1), 48 << 10),
    "too much dynamic memory": code("dynamic", (1, 1, 1), (128, 1, 1), 100 << 10),
    "allowing too much": allow("dynamic", ATTRIBUTES.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 228 << 10),
    "allowing 200 KiB": allow("dynamic", ATTRIBUTES.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 200 << 10),
    "now 100 KiB": code("dynamic", (1, 1, 1), (128, 1, 1), 100 << 10),
    "clusters of 8": code("dynamic", (16, 1, 1), (128, 1, 1), 0, [cluster_of(8)]),
    "clusters of 16": code("dynamic", (16, 1, 1), (128, 1, 1), 0, [cluster_of(16)]),
    "clusters that do not divide the grid": code("dynamic", (12, 1, 1), (128, 1, 1), 0, [cluster_of(8)]),
    "allowing 16": allow("dynamic", ATTRIBUTES.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1),
    "now clusters of 16": code("dynamic", (16, 1, 1), (128, 1, 1), 0, [cluster_of(16)]),
    "clusters of 32": code("dynamic", (32, 1, 1), (128, 1, 1), 0, [cluster_of(32)]),
    "clusters of 2, as compiled": code("clustered", (4, 1, 1), (128, 1, 1)),
    "half a cluster": code("clustered", (3, 1, 1), (128, 1, 1)),
    "other clusters than compiled": code("clustered", (4, 1, 1), (128, 1, 1), 0, [cluster_of(4)]),
    "clusters beyond the bound": code("up_to_four", (8, 1, 1), (128, 1, 1), 0, [cluster_of(8)]),
    "clusters within the bound": code("up_to_four", (8, 1, 1), (128, 1, 1), 0, [cluster_of(4)]),
    "requiring clusters of 3": allow("bounded", ATTRIBUTES.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, 3),
    "as then required": code("bounded", (6, 1, 1), (128, 1, 1)),
    "not as then required": code("bounded", (7, 1, 1), (128, 1, 1)),
    "cooperative": code("dynamic", (132, 1, 1), (128, 1, 1), 0, [cooperative()]),
    "too many blocks to cooperate": code("dynamic", (1 << 16, 1, 1), (128, 1, 1), 0, [cooperative()]),
}
print(json.dumps(found))
