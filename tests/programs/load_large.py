"""Loads PTX of each size that it is told, in KiB, twice over; prints the codes."""

import pathlib
import sys

from cu import CudaError, cu, ok, start

start()
text = (pathlib.Path(__file__).parent / "kernels.ptx").read_bytes()


def code(size):
    try:
        image = text + b"\n//" + b"x" * (size << 10)
        function = ok(cu.cuModuleGetFunction(ok(cu.cuModuleLoadData(image + b"\0")), b"increment"))
        ok(cu.cuFuncGetAttribute(cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NUM_REGS, function))
    except CudaError as error:
        return error.code
    return 0


print(*[code(int(size)) for size in sys.argv[1:] * 2])
