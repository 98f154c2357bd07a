"""Reads page-locked memory right after launches, which are waited for by CUDA_LAUNCH_BLOCKING=1. Prints "ok"."""

from cu import kernels, launch, pinned, start, u64

start()
increment, word = kernels()["increment"], pinned(1)
word[0] = 0
for expected in range(1, 6):
    launch(increment, 1, 1, [u64(word.ctypes.data)])
    assert word[0] == expected
print("ok")
