"""Two devices work for each other in the order of streams alone; the host waits only where the comments say so.

All of the chain is given to the streams while its first kernel cannot end: a call that waited would wait forever.
"""

import numpy as np
from cu import CudaError, cu, download, kernels, launch, ok, pinned, u32, u64, upload

CHAIN = 100_000
COUNT = 1_500_000  # more than one piece of a bulk copy
ROUNDS = 50
NON_BLOCKING = cu.CUstream_flags.CU_STREAM_NON_BLOCKING


def refusal(call):
    try:
        ok(call)
    except CudaError as error:
        return error.code
    return 0


class Side:
    """A device with a stream, an array of which the first `count` values grow in turns, and what they grow by."""

    def __init__(self, ordinal, step):
        self.count = CHAIN
        self.context = ok(cu.cuDevicePrimaryCtxRetain(ok(cu.cuDeviceGet(ordinal))))
        ok(cu.cuCtxSetCurrent(self.context))
        self.kernels = kernels()
        self.stream, self.event = ok(cu.cuStreamCreate(NON_BLOCKING)), ok(cu.cuEventCreate(0))
        self.values, self.step = upload(np.zeros(COUNT, np.float32)), upload(np.full(COUNT, step, np.float32))
        self.flag, self.out = upload(np.zeros(1, np.uint32)), upload(np.zeros(1, np.uint32))

    def work(self):
        arguments = [u64(int(self.values)), u64(int(self.step)), u64(int(self.values)), u32(self.count)]
        ok(cu.cuCtxSetCurrent(self.context))
        launch(self.kernels["add"], -(-self.count // 256), 256, arguments, self.stream)

    def hand_over(self, other, by):
        """The other side's later work starts from our values; `by` is the side whose stream copies."""
        if by is other:
            self.before(other)
        copy = (other.values, other.context, self.values, self.context, self.count * 4)
        ok(cu.cuMemcpyPeerAsync(*copy, by.stream))
        if by is self:
            self.before(other)

    def before(self, other):
        ok(cu.cuEventRecord(self.event, self.stream))
        ok(cu.cuStreamWaitEvent(other.stream, self.event, 0))


ok(cu.cuInit(0))
assert ok(cu.cuDeviceGetCount()) == 2
assert len({ok(cu.cuDeviceGetUuid(ok(cu.cuDeviceGet(i)))).bytes for i in range(2)}) == 2
first, second = Side(0, 1), Side(1, 2)
assert len({int(p) for side in (first, second) for p in (side.values, side.step)}) == 4

# The chain: 1, 3, 4, 6, 7, ... from device to device, released only when all of it has been given.
ok(cu.cuCtxSetCurrent(first.context))
launch(first.kernels["spin"], 1, 1, [u64(int(first.flag)), u64(int(first.out))], first.stream)
for turn in range(ROUNDS):
    first.work()
    first.hand_over(second, by=(first, second)[turn % 2])
    second.work()
    second.hand_over(first, by=(first, second)[turn // 2 % 2])
assert refusal(cu.cuEventQuery(first.event)) == 600, "the chain cannot have ended"
release, aside = np.array([7], np.uint32), ok(cu.cuStreamCreate(NON_BLOCKING))
ok(cu.cuMemcpyHtoDAsync(first.flag, release, 4, aside))
# From the other device's context: events and streams are known everywhere in the process.
ok(cu.cuCtxSetCurrent(second.context))
ok(cu.cuEventSynchronize(first.event))
ok(cu.cuStreamSynchronize(first.stream))
for side in (first, second):
    assert (download(side.values, CHAIN, np.float32) == 3 * ROUNDS).all()
    ok(cu.cuCtxSetCurrent(side.context))
    ok(cu.cuMemsetD8(side.values, 0, COUNT * 4))
    ok(cu.cuCtxSynchronize())
    side.count = COUNT

# Through page-locked memory: what one stream writes there, the other reads after its wait.
relay = pinned(COUNT, np.float32)
for _ in range(4):
    first.work()
    ok(cu.cuMemcpyDtoHAsync(relay.ctypes.data, first.values, relay.nbytes, first.stream))
    first.before(second)
    ok(cu.cuMemcpyHtoDAsync(second.values, relay.ctypes.data, relay.nbytes, second.stream))
    second.before(first)
    # The stream of one device copies the other's memory: in the order of that stream.
    ok(cu.cuMemcpyDtoHAsync(relay.ctypes.data, second.values, relay.nbytes, first.stream))
ok(cu.cuStreamSynchronize(first.stream))
assert (relay == 4).all()
assert (download(second.values, COUNT, np.float32) == 4).all()

# A box of rows with gaps on both sides.
rows, width = 300, 4000
box = cu.CUDA_MEMCPY3D_PEER()
box.srcMemoryType = box.dstMemoryType = cu.CUmemorytype.CU_MEMORYTYPE_DEVICE
box.srcDevice, box.dstDevice, box.srcContext, box.dstContext = first.step, second.values, first.context, second.context
box.srcPitch, box.dstPitch, box.WidthInBytes, box.Height, box.Depth = 4400, 5200, width, rows, 1
ok(cu.cuMemcpy3DPeerAsync(box, second.stream))
ok(cu.cuStreamSynchronize(second.stream))
expected = np.full(COUNT, 4, np.float32)
for row in range(rows):
    expected[row * 1300 : row * 1300 + width // 4] = 1
assert (download(second.values, COUNT, np.float32) == expected).all()

# Copies that are not asynchronous stand in the order of all work of both devices, and memory may go at once.
first.work()
ok(cu.cuMemcpyPeer(second.values, second.context, first.values, first.context, COUNT * 4))
second.work()
ok(cu.cuStreamSynchronize(second.stream))
assert (download(second.values, COUNT, np.float32) == 7).all()
ok(cu.cuMemcpyDtoD(first.values, second.values, COUNT * 4))
assert (download(first.values, COUNT, np.float32) == 7).all()
first.hand_over(second, by=second)
ok(cu.cuMemFree(first.values))
ok(cu.cuStreamSynchronize(second.stream))
assert (download(second.values, COUNT, np.float32) == 7).all()

# What two devices cannot do together is refused as CUDA refuses it.
assert refusal(cu.cuEventElapsedTime(first.event, second.event)) == 400
assert refusal(cu.cuEventRecord(first.event, second.stream)) == 400
print("ok")
