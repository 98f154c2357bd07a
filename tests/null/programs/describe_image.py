"""Prints as JSON what a driver tells of an image's kernels and variables: `describe_image.py IMAGE`."""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "programs"))

from cu import CudaError, cu, ok, start

ATTRIBUTES = cu.CUfunction_attribute
WANTED = {
    "static_shared": ATTRIBUTES.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
    "most_threads": ATTRIBUTES.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
    "most_dynamic_shared": ATTRIBUTES.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
    "cluster_width": ATTRIBUTES.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH,
}


def parameters(function):
    found = []
    try:
        while True:
            offset, size = ok(cu.cuFuncGetParamInfo(function, len(found)))
            found.append([int(offset), int(size)])
    except CudaError:
        return found


def kernels(module):
    count = ok(cu.cuModuleGetFunctionCount(module))
    for function in ok(cu.cuModuleEnumerateFunctions(count, module)):
        name = ok(cu.cuFuncGetName(function)).decode()
        told = {key: int(ok(cu.cuFuncGetAttribute(which, function))) for key, which in WANTED.items()}
        yield name, {"parameters": parameters(function), **told}


def variable(module, name):
    address, size = ok(cu.cuModuleGetGlobal(module, name))
    content = bytearray(int(size))
    ok(cu.cuMemcpyDtoH(content, address, int(size)))
    return content.hex()


start()
try:
    loaded = ok(cu.cuModuleLoadData(pathlib.Path(sys.argv[1]).read_bytes() + b"\0"))
except CudaError as error:
    print(json.dumps({"code": error.code}))
else:
    variables = {name: variable(loaded, name.encode()) for name in ("weights", "counter", "sums")}
    print(json.dumps({"kernels": dict(kernels(loaded)), "variables": variables}))
