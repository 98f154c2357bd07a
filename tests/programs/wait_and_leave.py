"""Destroys a context whose stream waits for a word that nothing writes; another context works after that."""

from cu import cu, download, ok, start

start()
context = ok(cu.cuCtxCreate(None, 0, ok(cu.cuDeviceGet(0))))
stream = ok(cu.cuStreamCreate(1))
word = ok(cu.cuMemAlloc(8))
ok(cu.cuMemsetD32(word, 0, 2))
ok(cu.cuStreamWaitValue32(stream, word, 1, 1))
ok(cu.cuMemsetD32Async(word, 5, 1, stream))
(code,) = cu.cuStreamQuery(stream)
assert code == cu.CUresult.CUDA_ERROR_NOT_READY, code
ok(cu.cuCtxDestroy(context))
start()
other = ok(cu.cuMemAlloc(8))
ok(cu.cuMemsetD32(other, 7, 2))
assert download(other, 2).tolist() == [7, 7]
print("ok")
