"""Reads of io_uring, by the system calls themselves."""

import ctypes
import mmap
import os
import struct

libc = ctypes.CDLL(None, use_errno=True)
SETUP, ENTER, REGISTER = 425, 426, 427
SUBMISSIONS, COMPLETIONS, ENTRIES = 0, 0x8000000, 0x10000000
GET_EVENTS, REGISTER_BUFFERS, READ_FIXED, READ = 1, 0, 4, 22


def call(number, *arguments):
    result = libc.syscall(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


class Ring:
    """A ring of one entry, which reads into memory at an address; with `registered` memory into that alone."""

    def __init__(self, registered=None):
        parameters = ctypes.create_string_buffer(120)
        self.file = call(SETUP, 1, parameters)
        values = struct.unpack("30I", parameters)
        # The offsets of what two rings have: head, tail, mask, entries and so on.
        submissions, completions = values[10:20], values[20:30]
        self.operation = READ if registered is None else READ_FIXED
        if registered is not None:
            vector = struct.pack("QQ", *registered)
            call(REGISTER, self.file, REGISTER_BUFFERS, vector, 1)
        sizes = submissions[6] + 4 * values[0], completions[5] + 16 * values[1], 64
        ways = zip(sizes, (SUBMISSIONS, COMPLETIONS, ENTRIES), strict=True)
        self.there, self.back, self.entry = (mmap.mmap(self.file, size, offset=offset) for size, offset in ways)
        self.tail, self.array = submissions[1], submissions[6]
        self.head, self.done = completions[0], completions[5]
        self.reads = 0

    def read(self, file, address, size):
        """Read so much of a pipe or a file to the address, and wait for it."""
        self.entry[:] = struct.pack("BBHiQQIIQHHiQQ", self.operation, 0, 0, file, 2**64 - 1, address, size, *[0] * 7)
        self.there[self.array : self.array + 4] = struct.pack("I", 0)
        self.there[self.tail : self.tail + 4] = struct.pack("I", self.reads + 1)
        call(ENTER, self.file, 1, 1, GET_EVENTS, None, 0)
        mask = 1
        at = self.done + 16 * (self.reads & mask)
        (result,) = struct.unpack("i", self.back[at + 8 : at + 12])
        self.reads += 1
        self.back[self.head : self.head + 4] = struct.pack("I", self.reads)
        assert result == size, result

    def close(self):
        for place in (self.there, self.back, self.entry):
            place.close()
        os.close(self.file)
