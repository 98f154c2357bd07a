"""Takes all memory of the first GPU, and tries to take more. Prints as JSON what it was shown and what it got."""

import json

from cu import CudaError, cu, ok, start, take_all


def refused(size):
    try:
        ok(cu.cuMemAlloc(size))
    except CudaError as error:
        return error.code
    return 0


start()
free, total = ok(cu.cuMemGetInfo())
code_for_a_byte_too_many = refused(total + 1)
taken = sum(size for _, size in take_all())
print(
    json.dumps(
        {"total": total, "free": free, "byte_over": code_for_a_byte_too_many, "taken": taken, "full": refused(2 << 20)}
    )
)
