"""Prints "ready", and until its input ends: allocates, maps and gives back memory in a seeded random order, and
compares what it has with what it wrote. At last prints how often."""

import random
import sys
import threading

import numpy as np
from cu import cu, download, ok, on_device, start, upload

WORDS = 1 << 18
chance = random.Random(int(sys.argv[1]))
context = start()
over = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()

properties, access = on_device()
BLOCK = 16 << 20
places = set(range(8))
area = ok(cu.cuMemAddressReserve(8 * BLOCK, 0, 0, 0))


class Allocated:
    def __init__(self, number):
        self.number = number
        self.words = np.full(chance.choice([1, 17, 40]) * WORDS, number, np.uint32)
        self.address = upload(self.words)

    def check(self):
        assert np.array_equal(download(self.address, len(self.words)), self.words), f"allocation {self.number}"

    def change(self):
        self.words[:] = self.number = self.number + 1
        ok(cu.cuMemsetD32(self.address, self.number, len(self.words)))

    def end(self):
        ok(cu.cuMemFree(self.address))


class Mapped(Allocated):
    """Physical memory that is shown at one place, and then at another one."""

    def __init__(self, number):
        self.number = number
        self.memory = ok(cu.cuMemCreate(BLOCK, properties, 0))
        self.words = np.full(BLOCK // 4, number, np.uint32)
        self.show()
        ok(cu.cuMemsetD32(self.address, number, len(self.words)))

    def show(self):
        self.place = chance.choice(sorted(places))
        places.remove(self.place)
        self.address = int(area) + self.place * BLOCK
        ok(cu.cuMemMap(self.address, BLOCK, 0, self.memory, 0))
        ok(cu.cuMemSetAccess(self.address, BLOCK, [access], 1))

    def hide(self):
        ok(cu.cuCtxSynchronize())
        ok(cu.cuMemUnmap(self.address, BLOCK))
        places.add(self.place)

    def change(self):
        self.hide()
        self.show()

    def end(self):
        self.hide()
        ok(cu.cuMemRelease(self.memory))


print("ready", flush=True)
held = [Allocated(n) for n in range(4)] + [Mapped(4)]
rounds = 0
while not over.is_set():
    rounds += 1
    held.append((Mapped if chance.random() < 0.4 and len(places) > 2 else Allocated)(1000 * rounds))
    chance.choice(held).change()
    chance.choice(held).check()
    while len(held) > 6:
        held.pop(chance.randrange(len(held))).end()
for each in held:
    each.check()
    each.end()
print(rounds, "rounds", flush=True)
