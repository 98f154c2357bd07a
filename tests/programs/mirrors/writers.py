"""Ways in which a program's memory is written without a call of CUDA."""

import ctypes
import os
import socket
import tempfile

from mirrors.ring import Ring, libc

BLOCK = 512


class Piece(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("size", ctypes.c_size_t))


class Writers:
    """Each writes words at a place of a memory. Of one thread."""

    def __init__(self):
        self.pipe, self.sockets = os.pipe(), socket.socketpair()
        self.file = tempfile.NamedTemporaryFile()  # noqa: SIM115
        self.direct = os.open(self.file.name, os.O_RDONLY | os.O_DIRECT)
        self.ring, self.rings = Ring(), {}

    def close(self):
        for ring in (self.ring, *self.rings.values()):
            ring.close()
        for file in (*self.pipe, self.direct):
            os.close(file)
        for end in (*self.sockets, self.file):
            end.close()

    def store(self, memory, at, values):
        memory.words[at : at + len(values)] = values

    def system_read(self, memory, at, values):
        os.write(self.pipe[1], values)
        assert os.readv(self.pipe[0], [memory.words[at : at + len(values)]]) == values.nbytes

    def system_receive(self, memory, at, values):
        self.sockets[0].send(values)
        assert self.sockets[1].recv_into(memory.words[at : at + len(values)]) == values.nbytes

    def direct_read(self, memory, at, values):
        os.pwrite(self.file.fileno(), values, 0)
        os.fsync(self.file.fileno())
        assert os.preadv(self.direct, [memory.words[at : at + len(values)]], 0) == values.nbytes

    def ring_read(self, memory, at, values):
        os.write(self.pipe[1], values)
        self.ring.read(self.pipe[0], memory.address + 4 * at, values.nbytes)

    def registered_ring_read(self, memory, at, values):
        if memory.address not in self.rings:
            self.rings[memory.address] = Ring((memory.address, memory.words.nbytes))
        os.write(self.pipe[1], values)
        self.rings[memory.address].read(self.pipe[0], memory.address + 4 * at, values.nbytes)

    def process_write(self, memory, at, values):
        there = Piece(memory.address + 4 * at, values.nbytes)
        here = Piece(values.ctypes.data, values.nbytes)
        done = libc.process_vm_writev(os.getpid(), ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
        assert done == values.nbytes, ctypes.get_errno()

    def other_mapping(self, memory, at, values):
        memory.other[at : at + len(values)] = values

    def forked_child(self, memory, at, values):
        child = os.fork()
        if child == 0:
            memory.words[at : at + len(values)] = values
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0

    def release(self, memory):
        """Let go of a memory that is about to be freed."""
        if ring := self.rings.pop(memory.address, None):
            ring.close()

    def fitting(self, memory, at, count):
        """The ways that can write these words."""
        ways = [self.store, self.system_read, self.system_receive, self.ring_read, self.process_write]
        # The kernel notes no writes of devices into pages that they hold.
        holds = os.environ.get("REMOTEGPU_TRACK_WRITES") != "1"
        if holds and (memory.address + 4 * at) % BLOCK == 0 and count * 4 % BLOCK == 0:
            ways.append(self.direct_read)
        if holds and memory.is_inherited:
            ways.append(self.registered_ring_read)
        if memory.other is not None:
            ways.append(self.other_mapping)
        if memory.is_shared:
            ways.append(self.forked_child)
        return ways
