"""A child made by fork writes page-locked memory of every size, which its parent sees, and sees what that writes."""

import os

import numpy as np
from cu import cu, download, ok, pinned, start

# On both sides of what a worker of this machine is given, and more than a page.
WORDS = [1, 1000, 5000, (64 << 10) // 4 - 1, (64 << 10) // 4, 1 << 20]
PARENT, CHILD, LATER = 11, 22, 33

start()
memories = [pinned(words) for words in WORDS]
device = ok(cu.cuMemAlloc(4 * max(WORDS)))
for memory in memories:
    memory[:] = PARENT
to_child, to_parent = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    code = 1
    try:
        was = all((memory == PARENT).all() for memory in memories)
        for memory in memories:
            memory[:] = CHILD
        os.write(to_parent[1], b"1")
        os.read(to_child[0], 1)
        code = 0 if was and all((memory == LATER).all() for memory in memories) else 2
    finally:
        os._exit(code)
os.read(to_parent[0], 1)
for memory in memories:
    assert (memory == CHILD).all(), (len(memory), memory[0])
    # A copy takes what is there, by whatever way.
    ok(cu.cuMemcpyHtoD(device, memory.ctypes.data, memory.nbytes))
    assert (download(device, len(memory)) == CHILD).all()
    ok(cu.cuMemsetD32(device, LATER, len(memory)))
    ok(cu.cuMemcpyDtoH(memory.ctypes.data, device, memory.nbytes))
    assert (memory == LATER).all()
os.write(to_child[1], b"1")
status = os.waitpid(child, 0)[1]
assert status == 0, os.waitstatus_to_exitcode(status)
# Given back and taken again it is zeroed, and no child of before has it.
for memory in memories:
    ok(cu.cuMemFreeHost(memory.ctypes.data))
assert all(not np.asarray(pinned(words)).any() for words in WORDS)
print("ok")
