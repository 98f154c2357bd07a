/* Pinned memory of the host, and what an address says about itself. */
#include "driver.h"
#include <stdint.h>

static unsigned word(CUdeviceptr address, CUpointer_attribute which)
{
    unsigned value = 0xdead;
    OK(cuPointerGetAttribute(&value, which, address));
    return value;
}

static CUdeviceptr number(CUdeviceptr address, CUpointer_attribute which)
{
    CUdeviceptr value = 0;
    OK(cuPointerGetAttribute(&value, which, address));
    return value;
}

static void pinned(CUdeviceptr device)
{
    unsigned *simple, *flagged, flags = 0;
    OK(cuMemAllocHost((void **)&simple, 4 * WORDS));
    OK(cuMemHostAlloc((void **)&flagged, 4 * WORDS, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_WRITECOMBINED));
    OK(cuMemHostGetFlags(&flags, flagged));
    REQUIRE((flags & CU_MEMHOSTALLOC_PORTABLE) && (flags & CU_MEMHOSTALLOC_WRITECOMBINED));
    count_up(flagged, 0);
    OK(cuMemcpyHtoDAsync(device, flagged, 4 * WORDS, NULL));
    OK(cuMemcpyDtoHAsync(simple, device, 4 * WORDS, NULL));
    OK(cuStreamSynchronize(NULL));
    REQUIRE(memcmp(simple, flagged, 4 * WORDS) == 0);
    REQUIRE(word((uintptr_t)simple, CU_POINTER_ATTRIBUTE_MEMORY_TYPE) == CU_MEMORYTYPE_HOST);
    REQUIRE(number((uintptr_t)simple, CU_POINTER_ATTRIBUTE_HOST_POINTER) == (uintptr_t)simple);

    /* Whether kernels reach it the device says before. */
    CUdeviceptr at = 0;
    unsigned *mapped;
    OK(cuMemHostAlloc((void **)&mapped, 4 * WORDS, CU_MEMHOSTALLOC_DEVICEMAP));
    CUresult reached = cuMemHostGetDevicePointer(&at, mapped, 0);
    if (attribute(CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY)) {
        OK(reached);
        memset(mapped, 0, 4 * WORDS);
        OK(cuMemsetD32(at, 9, WORDS));
        OK(cuCtxSynchronize());
        REQUIRE(mapped[0] == 9 && mapped[WORDS - 1] == 9);
    } else {
        EXPECT(CUDA_ERROR_NOT_SUPPORTED, reached);
    }
    OK(cuMemFreeHost(mapped));
    OK(cuMemFreeHost(simple));
    OK(cuMemFreeHost(flagged));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(&flags));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemHostAlloc((void **)&simple, 64, 1 << 20));
}

static void registered(CUdeviceptr device)
{
    static unsigned words[4096];
    unsigned flags = 99;
    OK(cuMemHostRegister(words, sizeof words, CU_MEMHOSTREGISTER_PORTABLE));
    EXPECT(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, cuMemHostRegister(words, sizeof words, 0));
    OK(cuMemHostGetFlags(&flags, words));
    REQUIRE(flags & CU_MEMHOSTREGISTER_PORTABLE);
    REQUIRE(word((uintptr_t)words, CU_POINTER_ATTRIBUTE_MEMORY_TYPE) == CU_MEMORYTYPE_HOST);
    count_up(words, 0);
    OK(cuMemcpyHtoDAsync(device, words, 4 * WORDS, NULL));
    OK(cuMemHostUnregister(words)); /* waits for the copy */
    memset(words, 0, sizeof words);
    require_words(device, 1, 0);
    EXPECT(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(words));
}

static void attributes(CUcontext context, CUdeviceptr device, CUdeviceptr other, size_t size)
{
    CUdeviceptr inside = device + 16;
    CUcontext owner = NULL;
    OK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, inside));
    REQUIRE(owner == context);
    REQUIRE(word(inside, CU_POINTER_ATTRIBUTE_MEMORY_TYPE) == CU_MEMORYTYPE_DEVICE);
    REQUIRE(word(inside, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) == 0);
    REQUIRE(word(inside, CU_POINTER_ATTRIBUTE_IS_MANAGED) == 0);
    REQUIRE(word(inside, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE) == 1); /* allocated, not mapped */
    REQUIRE(number(inside, CU_POINTER_ATTRIBUTE_DEVICE_POINTER) == inside);
    REQUIRE(number(inside, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR) == device);
    REQUIRE(number(inside, CU_POINTER_ATTRIBUTE_RANGE_SIZE) == size);
    REQUIRE(number(device, CU_POINTER_ATTRIBUTE_BUFFER_ID) == number(inside, CU_POINTER_ATTRIBUTE_BUFFER_ID));
    REQUIRE(number(device, CU_POINTER_ATTRIBUTE_BUFFER_ID) != number(other, CU_POINTER_ATTRIBUTE_BUFFER_ID));
    unsigned on = 1;
    OK(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, device));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, device));

    /* Several at once; of an address that CUDA does not know, nothing. */
    unsigned type = 99;
    CUdeviceptr begin = 99;
    CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR};
    void *places[] = {&type, &begin};
    OK(cuPointerGetAttributes(2, which, places, inside));
    REQUIRE(type == CU_MEMORYTYPE_DEVICE && begin == device);
    OK(cuPointerGetAttributes(2, which, places, (uintptr_t)&type));
    REQUIRE(type == 0 && begin == 0);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (uintptr_t)&type));
}

int main(void)
{
    CUcontext context = start();
    CUdeviceptr device, other;
    OK(cuMemAlloc(&device, 4096));
    OK(cuMemAlloc(&other, 4096));
    pinned(device);
    registered(device);
    attributes(context, device, other, 4096);
    OK(cuMemFree(device));
    OK(cuMemFree(other));
    OK(cuDevicePrimaryCtxRelease(0));
    return passed();
}
