"""Makes five streams and prints the code of each one's first use."""

from cu import code_of, cu, ok, start

start()
for _ in range(5):
    print(code_of(cu.cuStreamSynchronize, ok(cu.cuStreamCreate(1))))
