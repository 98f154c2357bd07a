/* Pools of stream-ordered memory: whose they are, what they count, and what comes out of them. */
#include "driver.h"

static CUstream stream;
static CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};

static cuuint64_t number(CUmemoryPool pool, CUmemPool_attribute which)
{
    cuuint64_t value = 0;
    OK(cuMemPoolGetAttribute(pool, which, &value));
    return value;
}

static CUmemoryPool make_pool(void)
{
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = here};
    CUmemoryPool pool;
    OK(cuMemPoolCreate(&pool, &properties));
    properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if (!attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)) {
        CUmemoryPool shared;
        EXPECT(CUDA_ERROR_NOT_SUPPORTED, cuMemPoolCreate(&shared, &properties));
    }
    return pool;
}

/* The pool that plain allocations come from can be exchanged; there is always one to go back to. */
static void pools_of_a_device(CUmemoryPool own)
{
    CUmemoryPool standard, current = NULL;
    OK(cuDeviceGetDefaultMemPool(&standard, 0));
    OK(cuMemGetDefaultMemPool(&current, &here, CU_MEM_ALLOCATION_TYPE_PINNED));
    REQUIRE(current == standard && standard != own);
    OK(cuDeviceGetMemPool(&current, 0));
    REQUIRE(current == standard);
    OK(cuDeviceSetMemPool(0, own));
    OK(cuMemGetMemPool(&current, &here, CU_MEM_ALLOCATION_TYPE_PINNED));
    REQUIRE(current == own);

    CUdeviceptr memory;
    CUmemoryPool origin = NULL;
    OK(cuMemAllocAsync(&memory, 4096, stream));
    OK(cuPointerGetAttribute(&origin, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, memory));
    REQUIRE(origin == own && number(own, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) >= 4096);
    OK(cuMemFreeAsync(memory, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuMemSetMemPool(&here, CU_MEM_ALLOCATION_TYPE_PINNED, standard));
    OK(cuDeviceGetMemPool(&current, 0));
    REQUIRE(current == standard);
}

static void accounts(CUmemoryPool own)
{
    CUdeviceptr first, second;
    unsigned words[WORDS];
    cuuint64_t keep = 1 << 20, zero = 0;
    int reuse = 0;
    OK(cuMemPoolSetAttribute(own, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
    REQUIRE(number(own, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) == keep);
    OK(cuMemPoolSetAttribute(own, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &reuse));
    reuse = 1;
    OK(cuMemPoolGetAttribute(own, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &reuse));
    REQUIRE(reuse == 0);
    FAILS(cuMemPoolSetAttribute(own, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &zero));

    OK(cuMemPoolSetAttribute(own, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero));
    OK(cuMemAllocFromPoolAsync(&first, 1 << 20, own, stream));
    OK(cuMemAllocFromPoolAsync(&second, 1 << 20, own, stream));
    REQUIRE(first != second);
    OK(cuMemsetD32Async(first, 7, WORDS, stream));
    OK(cuMemcpyDtoDAsync(second, first, 4 * WORDS, stream));
    OK(cuMemcpyDtoHAsync(words, second, 4 * WORDS, stream));
    OK(cuStreamSynchronize(stream));
    for (int i = 0; i < WORDS; i++) REQUIRE(words[i] == 7);
    REQUIRE(number(own, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 2 << 20);
    OK(cuMemFreeAsync(first, stream));
    OK(cuMemFreeAsync(second, stream));
    OK(cuStreamSynchronize(stream));
    REQUIRE(number(own, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 0);
    REQUIRE(number(own, CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 2 << 20);
    OK(cuMemPoolTrimTo(own, 0));
    REQUIRE(number(own, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 0);
    FAILS(cuMemFreeAsync(first, stream));
}

static void access(CUmemoryPool own)
{
    CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    CUmemAccessDesc wanted = {.location = here, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    OK(cuMemPoolSetAccess(own, &wanted, 1));
    OK(cuMemPoolGetAccess(&flags, own, &here));
    REQUIRE(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    wanted.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE; /* a device cannot lose its own pool */
    FAILS(cuMemPoolSetAccess(own, &wanted, 1));
}

static unsigned word(CUdeviceptr where)
{
    unsigned value = 0;
    OK(cuMemcpyDtoH(&value, where, sizeof value));
    return value;
}

/* A pool is the device's: its memory outlives the context that took it, and any context of the device frees it. */
static void memory_outlives_contexts(CUcontext primary, CUmemoryPool own)
{
    CUmemoryPool standard;
    CUcontext first, second;
    CUdeviceptr plain, taken[5];
    CUstream work;
    OK(cuDeviceGetDefaultMemPool(&standard, 0));
    REQUIRE(number(own, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 0);
    cuuint64_t before = number(standard, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
    OK(cuCtxCreate(&second, NULL, 0, 0));
    OK(cuStreamCreate(&work, CU_STREAM_NON_BLOCKING));
    OK(cuCtxCreate(&first, NULL, 0, 0));
    OK(cuMemAlloc(&plain, 1 << 20));
    for (unsigned i = 0; i < 5; i++) {
        if (i % 2) OK(cuMemAllocFromPoolAsync(&taken[i], 1 << 20, own, NULL));
        else OK(cuMemAllocAsync(&taken[i], 1 << 20, NULL));
        OK(cuMemsetD32Async(taken[i], 100 + i, 1 << 18, NULL));
    }
    OK(cuCtxSynchronize());
    /* Work of another context uses it at the end of this one. */
    OK(cuCtxSetCurrent(second));
    for (unsigned i = 0; i < 20; i++) OK(cuMemcpyDtoDAsync(taken[1], taken[0], 1 << 20, work));
    OK(cuCtxDestroy(first));
    OK(cuStreamSynchronize(work));
    OK(cuCtxSetCurrent(primary));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree(plain));
    REQUIRE(number(own, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 2 << 20);
    REQUIRE(number(standard, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == before + (3 << 20));
    REQUIRE(word(taken[0]) == 100 && word(taken[1]) == 100 && word(taken[2]) == 102 && word(taken[4] + 1024) == 104);
    CUmemoryPool origin = NULL;
    CUcontext told = primary;
    OK(cuPointerGetAttribute(&origin, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, taken[3]));
    OK(cuPointerGetAttribute(&told, CU_POINTER_ATTRIBUTE_CONTEXT, taken[3]));
    REQUIRE(origin == own && told == NULL);
    OK(cuMemsetD32(taken[2], 7, 1 << 18));
    REQUIRE(word(taken[2]) == 7);

    OK(cuMemFreeAsync(taken[0], NULL));
    OK(cuMemFree(taken[1]));
    OK(cuCtxSetCurrent(second));
    OK(cuMemFreeAsync(taken[2], work));
    OK(cuStreamSynchronize(work));
    OK(cuCtxDestroy(second));
    /* Nor does it need any context. */
    OK(cuDevicePrimaryCtxRelease(0));
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    OK(cuCtxSetCurrent(primary));
    REQUIRE(word(taken[3]) == 103 && word(taken[4]) == 104);
    OK(cuMemFreeAsync(taken[3], NULL));
    OK(cuMemFree(taken[4]));
    OK(cuCtxSynchronize());
    for (unsigned i = 0; i < 5; i++) FAILS(cuMemFreeAsync(taken[i], NULL));
    REQUIRE(number(own, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 0);
    REQUIRE(number(standard, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == before);

    /* A destroyed pool goes when its memory does; a reset of the primary context leaves none. */
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = here};
    CUmemoryPool brief;
    OK(cuMemPoolCreate(&brief, &properties));
    OK(cuCtxCreate(&first, NULL, 0, 0));
    OK(cuMemAllocFromPoolAsync(&taken[0], 4096, brief, NULL));
    OK(cuMemsetD32Async(taken[0], 5, 1024, NULL));
    OK(cuMemPoolDestroy(brief));
    OK(cuCtxDestroy(first));
    OK(cuCtxSetCurrent(primary));
    REQUIRE(word(taken[0]) == 5);
    OK(cuMemFreeAsync(taken[0], NULL));
    OK(cuCtxSynchronize());
    OK(cuMemAllocAsync(&taken[0], 4096, NULL));
    OK(cuDevicePrimaryCtxReset(0));
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    OK(cuCtxSetCurrent(primary));
    FAILS(cuMemFree(taken[0]));
    REQUIRE(number(standard, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == before);
    OK(cuDevicePrimaryCtxRelease(0));
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    OK(cuCtxSetCurrent(primary));
}

int main(void)
{
    CUcontext primary = start();
    REQUIRE(attribute(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED) == 1);
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUmemoryPool own = make_pool();
    pools_of_a_device(own);
    accounts(own);
    access(own);
    OK(cuStreamDestroy(stream));
    memory_outlives_contexts(primary, own);
    OK(cuMemPoolDestroy(own));
    FAILS(cuMemPoolDestroy(own));
    FAILS(cuMemPoolTrimTo(own, 0));
    OK(cuDevicePrimaryCtxRelease(0));
    return passed();
}
