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

int main(void)
{
    start();
    REQUIRE(attribute(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED) == 1);
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUmemoryPool own = make_pool();
    pools_of_a_device(own);
    accounts(own);
    access(own);
    OK(cuMemPoolDestroy(own));
    FAILS(cuMemPoolDestroy(own));
    FAILS(cuMemPoolTrimTo(own, 0));
    OK(cuStreamDestroy(stream));
    OK(cuDevicePrimaryCtxRelease(0));
    return passed();
}
