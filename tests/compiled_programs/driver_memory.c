/* Memory of the device: what an address is, every fill, and every linear copy. */
#include "driver.h"

static CUstream stream;

static void allocations(void)
{
    CUdeviceptr memory, base = 0, pitched;
    size_t size = 0, pitch = 0;
    OK(cuMemAlloc(&memory, 5000));
    REQUIRE(memory % 256 == 0);
    OK(cuMemGetAddressRange(&base, &size, memory + 4999));
    REQUIRE(base == memory && size == 5000);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree(memory + 8));
    OK(cuMemFree(memory));
    FAILS(cuMemGetAddressRange(&base, &size, memory));
    OK(cuMemAllocPitch(&pitched, &pitch, 100, 10, 4));
    REQUIRE(pitch >= 100 && pitch % 32 == 0);
    OK(cuMemsetD8(pitched + 9 * pitch, 1, 100));
    OK(cuMemFree(pitched));
}

/* What an element of a fill of `width` bytes has at each place. */
static const unsigned pattern = 0xa1b2c3d4;

static void require_filled(CUdeviceptr memory, unsigned bytes, unsigned from, unsigned count, unsigned size)
{
    unsigned char host[512];
    REQUIRE(size <= sizeof host);
    OK(cuMemcpyDtoH(host, memory, size));
    for (unsigned i = 0; i < size; i++) {
        unsigned inside = i >= from && i < from + count * bytes;
        unsigned char expected = inside ? (unsigned char)(pattern >> 8 * ((i - from) % bytes)) : 0x55;
        REQUIRE(host[i] == expected);
    }
}

static void linear_fills(CUdeviceptr memory)
{
    enum { SIZE = 400 };
    for (int late = 0; late < 2; late++)
        for (unsigned bytes = 1; bytes <= 4; bytes *= 2) {
            OK(cuMemsetD8(memory, 0x55, SIZE));
            OK(cuCtxSynchronize());
            CUdeviceptr at = memory + 16;
            if (bytes == 1) OK(late ? cuMemsetD8Async(at, pattern, 77, stream) : cuMemsetD8(at, pattern, 77));
            if (bytes == 2) OK(late ? cuMemsetD16Async(at, pattern, 77, stream) : cuMemsetD16(at, pattern, 77));
            if (bytes == 4) OK(late ? cuMemsetD32Async(at, pattern, 77, stream) : cuMemsetD32(at, pattern, 77));
            OK(cuStreamSynchronize(stream));
            require_filled(memory, bytes, 16, 77, SIZE);
        }
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemsetD32(memory + 1, 0, 1));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemsetD16(memory + 1, 0, 1));
}

/* Rows of 5 elements, 3 of them, 64 bytes apart. */
static void rectangular_fills(CUdeviceptr memory)
{
    enum { PITCH = 64, WIDTH = 5, HEIGHT = 3 };
    for (int late = 0; late < 2; late++)
        for (unsigned bytes = 1; bytes <= 4; bytes *= 2) {
            OK(cuMemsetD8(memory, 0x55, 4 * PITCH));
            OK(cuCtxSynchronize());
            CUdeviceptr at = memory + 8;
            if (bytes == 1)
                OK(late ? cuMemsetD2D8Async(at, PITCH, pattern, WIDTH, HEIGHT, stream)
                        : cuMemsetD2D8(at, PITCH, pattern, WIDTH, HEIGHT));
            if (bytes == 2)
                OK(late ? cuMemsetD2D16Async(at, PITCH, pattern, WIDTH, HEIGHT, stream)
                        : cuMemsetD2D16(at, PITCH, pattern, WIDTH, HEIGHT));
            if (bytes == 4)
                OK(late ? cuMemsetD2D32Async(at, PITCH, pattern, WIDTH, HEIGHT, stream)
                        : cuMemsetD2D32(at, PITCH, pattern, WIDTH, HEIGHT));
            OK(cuStreamSynchronize(stream));
            for (int row = 0; row < HEIGHT; row++) require_filled(memory + row * PITCH, bytes, 8, WIDTH, PITCH);
            require_filled(memory + HEIGHT * PITCH, bytes, 0, 0, PITCH);
        }
}

/* The words go through each form once; each form moves what the one before left elsewhere. */
static void linear_copies(CUdeviceptr a, CUdeviceptr b)
{
    unsigned words[WORDS], back[WORDS];
    const size_t size = sizeof words;
    CUcontext context;
    OK(cuCtxGetCurrent(&context));
    count_up(words, 0);
    OK(cuMemsetD8(a, 0, size));
    OK(cuMemcpyHtoD(a, words, size));
    OK(cuMemcpyDtoD(b, a, size));
    require_words(b, 1, 0);
    OK(cuMemsetD8(a, 0, size));
    OK(cuMemcpy(a, b, size));
    require_words(a, 1, 0);
    OK(cuMemsetD8(b, 0, size));
    OK(cuMemcpyPeer(b, context, a, context, size));
    require_words(b, 1, 0);

    OK(cuMemsetD8(a, 0, size));
    OK(cuStreamSynchronize(NULL));
    OK(cuMemcpyDtoDAsync(a, b, size, stream));
    OK(cuMemcpyDtoHAsync(back, a, size, stream));
    OK(cuStreamSynchronize(stream));
    REQUIRE(memcmp(back, words, size) == 0);
    count_up(words, 1000);
    OK(cuMemcpyHtoDAsync(a, words, size, stream));
    OK(cuMemcpyAsync(b, a, size, stream));
    OK(cuStreamSynchronize(stream));
    require_words(b, 1, 1000);
    OK(cuMemsetD32Async(a, 0, WORDS, stream));
    OK(cuMemcpyPeerAsync(a, context, b, context, size, stream));
    OK(cuStreamSynchronize(stream));
    require_words(a, 1, 1000);

    memset(back, 0, size);
    OK(cuMemcpy((CUdeviceptr)back, a, size));
    REQUIRE(memcmp(back, words, size) == 0);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoD(a, 0x10, 4));
}

/* Three copies at once: up, across, and down again. */
static void batches(CUdeviceptr a, CUdeviceptr b)
{
    enum { COPIES = 3 };
    unsigned words[WORDS], *pinned;
    OK(cuMemAllocHost((void **)&pinned, sizeof words));
    count_up(pinned, 500);
    CUdeviceptr to[COPIES] = {a, b, (CUdeviceptr)words}, from[COPIES] = {(CUdeviceptr)pinned, a, b};
    size_t sizes[COPIES] = {sizeof words, sizeof words, sizeof words}, first = 0;
    CUmemcpyAttributes attributes;
    memset(&attributes, 0, sizeof attributes);
    attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    OK(cuMemcpyBatchAsync(to, from, sizes, COPIES, &attributes, &first, 1, stream));
    OK(cuStreamSynchronize(stream));
    REQUIRE(memcmp(words, pinned, sizeof words) == 0);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyBatchAsync(to, from, sizes, COPIES, &attributes, &first, 1, NULL));

    count_up(pinned, 900);
    OK(cuMemcpyWithAttributesAsync(a, (CUdeviceptr)pinned, sizeof words, &attributes, stream));
    OK(cuStreamSynchronize(stream));
    require_words(a, 1, 900);
    OK(cuMemFreeHost(pinned));
}

/* A box of 8 x 2 x 2 bytes out of rows of 16 and layers of 4 rows, packed on the device, and back into other rows. */
static void batches_of_boxes(CUdeviceptr a, CUdeviceptr b)
{
    unsigned char source[128], target[96], packed[32];
    for (unsigned i = 0; i < sizeof source; i++) source[i] = i;
    memset(target, 0xee, sizeof target);
    OK(cuMemsetD8(a, 0, 64));
    OK(cuMemsetD8(b, 0, 64));
    OK(cuCtxSynchronize());
    CUDA_MEMCPY3D_BATCH_OP up = {.extent = {8, 2, 2}, .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL};
    up.src.type = up.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    up.src.op.ptr.ptr = (CUdeviceptr)(source + 4);
    up.src.op.ptr.rowLength = 16;
    up.src.op.ptr.layerHeight = 4;
    up.dst.op.ptr.ptr = a;
    CUDA_MEMCPY3D_BATCH_OP all[2] = {up, up};
    all[1].dst.op.ptr.ptr = b;
    OK(cuMemcpy3DBatchAsync(2, all, 0, stream));
    OK(cuStreamSynchronize(stream));
    for (unsigned copy = 0; copy < 2; copy++) {
        OK(cuMemcpyDtoH(packed, copy ? b : a, sizeof packed));
        for (unsigned z = 0; z < 2; z++)
            for (unsigned y = 0; y < 2; y++)
                for (unsigned x = 0; x < 8; x++)
                    REQUIRE(packed[z * 16 + y * 8 + x] == source[4 + z * 64 + y * 16 + x]);
    }

    CUDA_MEMCPY3D_BATCH_OP down = up;
    down.src = up.dst;
    down.dst.op.ptr.ptr = (CUdeviceptr)target;
    down.dst.op.ptr.rowLength = 12;
    down.dst.op.ptr.layerHeight = 3;
    OK(cuMemcpy3DWithAttributesAsync(&down, 0, stream));
    OK(cuStreamSynchronize(stream));
    REQUIRE(target[0] == source[4] && target[8] == 0xee && target[12] == source[20] && target[24] == 0xee);
    REQUIRE(target[36] == source[68] && target[48 + 7] == source[84 + 7]);

    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpy3DBatchAsync(2, all, 0, NULL));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpy3DBatchAsync(0, all, 0, stream));
    all[1].src.op.ptr.rowLength = 7;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpy3DBatchAsync(2, all, 0, stream));
    down.extent.depth = 0;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpy3DWithAttributesAsync(&down, 0, stream));
    OK(cuStreamSynchronize(stream));
}

/* Who wants one of two answers leaves the other out. */
static void one_answer(void)
{
    size_t all = 0, left = 0;
    OK(cuMemGetInfo(&left, NULL));
    OK(cuMemGetInfo(NULL, &all));
    OK(cuMemGetInfo(NULL, NULL));
    REQUIRE(left > 0 && all >= left);
}

int main(void)
{
    CUdeviceptr a, b;
    start();
    one_answer();
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc(&a, 4096));
    OK(cuMemAlloc(&b, 4096));
    allocations();
    linear_fills(a);
    rectangular_fills(a);
    linear_copies(a, b);
    batches(a, b);
    batches_of_boxes(a, b);
    OK(cuMemFree(a));
    OK(cuMemFree(b));
    OK(cuStreamDestroy(stream));
    OK(cuDevicePrimaryCtxRelease(0));
    return passed();
}
