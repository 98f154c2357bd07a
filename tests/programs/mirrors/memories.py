"""Memory that host and device share, of each kind, with what it has to hold."""

import ctypes
import mmap
import os

import numpy as np
from cu import cu, ok

DEVICEMAP, PORTABLE, WRITECOMBINED = 2, 1, 4
FLAGS = 0, DEVICEMAP, PORTABLE, DEVICEMAP | PORTABLE, DEVICEMAP | WRITECOMBINED
VARIABLE_WORDS = 2048
VARIABLE = f"""
.version 7.0
.target sm_70
.address_size 64
.visible .global .attribute(.managed) .align 4 .u32 words[{VARIABLE_WORDS}] = {{7}};
\0""".encode()


def view(address, count):
    return np.frombuffer((ctypes.c_char * (4 * count)).from_address(address), np.uint32)


class Memory:
    """Words at one address, or at two: the device's may be another one."""

    #: The host may use it while the device is at work.
    is_concurrent = True
    #: A forked child sees what its parent wrote, and the parent what the child wrote.
    is_inherited = is_shared = False
    #: Kernels find it at its host address without having been told of it.
    is_found = False
    #: The same words elsewhere in the program.
    other = None

    def __init__(self, address, count):
        self.address, self.words = address, view(address, count)
        self.expected = self.words.copy()
        self.device = 0

    def on_device(self):
        if not self.device:
            self.device = int(ok(cu.cuMemHostGetDevicePointer(self.address, 0)))
        return self.device

    def free(self):
        ok(cu.cuMemFreeHost(self.address))


class Allocated(Memory):
    def __init__(self, chance, count):
        flags = FLAGS[chance.integers(len(FLAGS))]
        super().__init__(int(ok(cu.cuMemHostAlloc(4 * count, flags))), count)
        self.is_found = True


class Registered(Memory):
    """A part of a private mapping."""

    is_inherited = True

    def __init__(self, chance, count):
        self.mapping = mmap.mmap(-1, 4 * count + 8192, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        first = int(chance.choice([0, 0, 4, 512, 4096]))
        super().__init__(np.frombuffer(self.mapping, np.uint8).ctypes.data + first, count)
        self.register()

    def register(self):
        ok(cu.cuMemHostRegister(self.address, self.words.nbytes, DEVICEMAP))

    def unregister(self):
        ok(cu.cuMemHostUnregister(self.address))
        self.device = 0

    def free(self):
        self.unregister()


class Shared(Registered):
    """A file in memory that is mapped twice, of which one mapping is registered."""

    is_shared = True

    def __init__(self, chance, count):
        file = os.memfd_create("words")
        os.ftruncate(file, 4 * count)
        self.mapping, self.second = (mmap.mmap(file, 4 * count) for _ in range(2))
        os.close(file)
        self.other = np.frombuffer(self.second, np.uint32)
        Memory.__init__(self, np.frombuffer(self.mapping, np.uint8).ctypes.data, count)
        self.register()


class Managed(Memory):
    is_concurrent = False

    def __init__(self, chance, count):
        super().__init__(int(ok(cu.cuMemAllocManaged(4 * count, 1))), count)
        self.device = self.address

    def free(self):
        ok(cu.cuMemFree(self.address))


class Variable(Managed):
    """A `__managed__` variable."""

    def __init__(self, chance, count):
        self.library = ok(cu.cuLibraryLoadData(VARIABLE, [], [], 0, [], [], 0))
        address, size = ok(cu.cuLibraryGetManaged(self.library, b"words"))
        assert size == 4 * VARIABLE_WORDS
        Memory.__init__(self, int(address), VARIABLE_WORDS)
        self.device = self.address
        assert self.words[0] == 7

    def free(self):
        ok(cu.cuLibraryUnload(self.library))


class Created(Memory):
    """Memory of the host that the program maps itself, at one place or at two."""

    SIZE = 2 << 20

    def __init__(self, chance, count, devices=1):
        wanted = cu.CUmemAllocationProp()
        wanted.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        wanted.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST_NUMA
        users = [cu.CUmemAccessDesc() for _ in range(devices)]
        for ordinal, user in enumerate(users):
            user.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
            user.location.id = ordinal
            user.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        self.handle = ok(cu.cuMemCreate(self.SIZE, wanted, 0))
        self.places = []
        for _ in range(1 + int(chance.integers(4) == 0)):
            place = ok(cu.cuMemAddressReserve(self.SIZE, 0, 0, 0))
            ok(cu.cuMemMap(place, self.SIZE, 0, self.handle, 0))
            ok(cu.cuMemSetAccess(place, self.SIZE, users, devices))
            self.places.append(place)
        super().__init__(int(self.places[0]), count)
        self.is_found = True
        if len(self.places) > 1:
            self.other = view(int(self.places[1]), count)

    def free(self):
        # Unlike the others it may not end under kernels.
        ok(cu.cuCtxSynchronize())
        for place in self.places:
            ok(cu.cuMemUnmap(place, self.SIZE))
            ok(cu.cuMemAddressFree(place, self.SIZE))
        ok(cu.cuMemRelease(self.handle))


CONCURRENT = Allocated, Registered, Shared, Created
KINDS = *CONCURRENT, Managed, Variable
