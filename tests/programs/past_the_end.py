"""Allocates memory and prints "ready"; for each line on standard input counts in the last words of it and prints "ok".
At the end of the input a kernel touches the word behind an allocation, which has to break the context."""

import sys

from cu import code_of, cu, download, kernels, launch, ok, start, u64

ILLEGAL_ADDRESS = 700
SIZE = 1000

start()
increment = kernels()["increment"]
pieces = [ok(cu.cuMemAlloc(SIZE)) for _ in range(8)]
ok(cu.cuMemFree(pieces.pop(3)))
for piece in pieces:
    ok(cu.cuMemsetD8(piece, 0, SIZE))
print("ready", flush=True)
for times, _ in enumerate(sys.stdin, start=1):
    for piece in pieces:
        launch(increment, 1, 1, [u64(int(piece) + SIZE - 4)])
    assert [download(int(piece) + SIZE - 4, 1)[0] for piece in pieces] == [times] * len(pieces)
    print("ok", flush=True)
launch(increment, 1, 1, [u64(int(pieces[2]) + SIZE)])
assert code_of(cu.cuCtxSynchronize) == ILLEGAL_ADDRESS
