"""Random programs with memory that host and device share: `random_mirrors.py FIRST COUNT [ROUNDS] [elsewhere]`.

With the last argument a second device and a second process wait, too.

Each word is compared with what CUDA's documentation says must be there. Prints a line of JSON for each program: its
seed, what it did, and what was not as it must be.
"""

import faulthandler
import json
import os
import sys
import threading
import traceback

import numpy as np
from cu import cu, ok, start
from mirrors.commands import Commands
from mirrors.elsewhere import Elsewhere
from mirrors.kernels import EXCHANGE_AND_BUMP
from mirrors.memories import CONCURRENT, KINDS, Registered

HAS_OTHERS = sys.argv[-1] == "elsewhere"
ROUNDS = int(sys.argv[3]) if len(sys.argv) > 3 + HAS_OTHERS else 12
SIZES = 48, 640, 1024, 3000, 16384
STRIPES = 1, 3, 128
#: A program that hangs says where.
SECONDS = 60


class Program:
    def __init__(self, seed, context, functions, elsewhere):
        self.chance, self.context, self.done = np.random.default_rng(seed), context, set()
        self.failed = []
        threads = int(self.chance.choice([1, 1, 2, 3]))
        kinds = KINDS if threads == 1 else CONCURRENT
        number = self.chance.integers(2, 7)
        self.memories = [self.memory(kinds[self.chance.integers(len(kinds))]) for _ in range(number)]
        stripe = int(self.chance.choice(STRIPES))
        self.threads = []
        for thread in range(threads):
            owned = [np.flatnonzero(np.arange(len(m.words)) // stripe % threads == thread) for m in self.memories]
            # A memory of a single stripe is the first thread's alone.
            chance, has_words = np.random.default_rng([seed, thread]), [len(words) > 0 for words in owned]
            memories = [memory for memory, has in zip(self.memories, has_words, strict=True) if has]
            owned = [words for words in owned if len(words)]
            if memories:
                self.threads.append(Commands(chance, memories, owned, functions, self.done, elsewhere))

    def memory(self, kind):
        self.done.add(kind.__name__)
        memory = kind(self.chance, int(self.chance.choice(SIZES)))
        memory.expected[:] = self.chance.integers(0, 1 << 32, len(memory.words), np.uint32)
        memory.words[:] = memory.expected
        return memory

    def work(self, thread):
        try:
            ok(cu.cuCtxSetCurrent(self.context))
            for _ in range(ROUNDS):
                thread.round()
        except Exception as error:
            traceback.print_exc()
            self.failed.append(str(error) or repr(error))

    def run(self):
        others = [threading.Thread(target=self.work, args=(thread,)) for thread in self.threads[1:]]
        for other in others:
            other.start()
        self.work(self.threads[0])
        for other in others:
            other.join()

    def end(self):
        """Memory ends under kernels: what they wrote stays in what is the program's own."""
        first = self.threads[0]
        for slot in range(2):
            first.exchange_words(slot)
        for memory in self.memories:
            memory.free()
            if isinstance(memory, Registered):
                self.done.add("by_unregistering")
                assert (memory.words == memory.expected).all(), "what a kernel wrote before memory was unregistered"
        for thread in self.threads:
            thread.end()


def main():
    first, count = int(sys.argv[1]), int(sys.argv[2])
    context = start()
    module = ok(cu.cuModuleLoadData(EXCHANGE_AND_BUMP))
    functions = [ok(cu.cuModuleGetFunction(module, name)) for name in (b"exchange", b"bump")]
    elsewhere = Elsewhere(context) if HAS_OTHERS else None
    failed = []
    for seed in range(first, first + count):
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        program = Program(seed, context, functions, elsewhere)
        program.run()
        if not program.failed:
            program.end()
        failed = program.failed
        print(json.dumps({"seed": seed, "did": sorted(program.done), "differs": failed}), flush=True)
        if failed:
            # What is left of the program would disturb the next one.
            break
    if elsewhere and not failed:
        elsewhere.end()
    sys.stdout.flush()
    os._exit(1 if failed else 0)


if __name__ == "__main__":
    main()
