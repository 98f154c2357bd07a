/* Contexts: the stack of a thread, flags, limits and preferences, and the context that all of a process shares. */
#include "driver.h"

/* Declared by a header that comes with the tools only. */
CUresult cuProfilerStart(void);
CUresult cuProfilerStop(void);

static void stack_of_contexts(void)
{
    CUcontext first, second, current = NULL;
    CUdevice device = -1;
    unsigned long long first_id = 0, second_id = 0;
    unsigned version = 0, flags = 0;
    OK(cuCtxCreate(&first, NULL, CU_CTX_SCHED_YIELD, 0));
    OK(cuCtxCreate(&second, NULL, 0, 0));
    OK(cuCtxGetCurrent(&current));
    REQUIRE(current == second);
    OK(cuCtxGetId(first, &first_id));
    OK(cuCtxGetId(NULL, &second_id));
    REQUIRE(first_id != second_id);
    OK(cuCtxPopCurrent(&current));
    REQUIRE(current == second);
    OK(cuCtxGetCurrent(&current));
    REQUIRE(current == first);
    OK(cuCtxGetFlags(&flags));
    REQUIRE(flags == CU_CTX_SCHED_YIELD);
    OK(cuCtxSetFlags(CU_CTX_SCHED_BLOCKING_SYNC));
    OK(cuCtxGetFlags(&flags));
    REQUIRE((flags & CU_CTX_SCHED_MASK) == CU_CTX_SCHED_BLOCKING_SYNC);
    OK(cuCtxGetDevice(&device));
    REQUIRE(device == 0);
    OK(cuCtxGetApiVersion(second, &version));
    REQUIRE(version >= 3020);

    /* Memory belongs to the context it was made in, and goes with it. */
    size_t before, during, total;
    CUdeviceptr memory;
    OK(cuCtxPushCurrent(second));
    OK(cuMemGetInfo(&before, &total));
    OK(cuMemAlloc(&memory, 32 << 20));
    OK(cuMemsetD8(memory, 1, 32 << 20));
    OK(cuCtxSynchronize());
    OK(cuMemGetInfo(&during, &total));
    REQUIRE(before - during >= 32 << 20);
    OK(cuCtxDestroy(second));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxSetCurrent(second));
    OK(cuCtxSetCurrent(first));
    OK(cuMemGetInfo(&during, &total));
    REQUIRE(during + (8 << 20) >= before);
    OK(cuCtxDestroy(first));
    OK(cuCtxGetCurrent(&current));
    REQUIRE(current == NULL);
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxSynchronize());
}

static void settings(void)
{
    CUcontext context;
    OK(cuCtxCreate(&context, NULL, 0, 0));
    size_t value;
    OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 8192));
    OK(cuCtxGetLimit(&value, CU_LIMIT_STACK_SIZE));
    REQUIRE(value >= 8192);
    FAILS(cuCtxGetLimit(&value, (CUlimit)1000));
    FAILS(cuCtxSetLimit((CUlimit)1000, 1));

    CUfunc_cache cache = (CUfunc_cache)99;
    OK(cuCtxSetCacheConfig(CU_FUNC_CACHE_PREFER_L1));
    OK(cuCtxGetCacheConfig(&cache));
    REQUIRE(cache == CU_FUNC_CACHE_PREFER_L1 || cache == CU_FUNC_CACHE_PREFER_NONE);
    FAILS(cuCtxSetCacheConfig((CUfunc_cache)99));
    CUsharedconfig banks = (CUsharedconfig)99;
    OK(cuCtxSetSharedMemConfig(CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE));
    OK(cuCtxGetSharedMemConfig(&banks));
    REQUIRE(banks == CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE);
    FAILS(cuCtxSetSharedMemConfig((CUsharedconfig)99));
    OK(cuCtxResetPersistingL2Cache());
    OK(cuProfilerStart()); /* without a profiler nothing happens */
    OK(cuProfilerStop());

    int least, greatest;
    OK(cuCtxGetStreamPriorityRange(&least, &greatest));
    REQUIRE(least >= greatest);
    OK(cuCtxDestroy(context));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxResetPersistingL2Cache());
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuProfilerStart());
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuProfilerStop());
}

static void require_active(int expected)
{
    unsigned flags;
    int active = -1;
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    REQUIRE(active == expected);
}

static void primary(void)
{
    CUcontext first, second;
    unsigned flags;
    int active;
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    REQUIRE(active == 0);
    OK(cuDevicePrimaryCtxSetFlags(0, CU_CTX_SCHED_SPIN));
    OK(cuDevicePrimaryCtxRetain(&first, 0));
    OK(cuDevicePrimaryCtxRetain(&second, 0));
    REQUIRE(first == second);
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    REQUIRE(active == 1 && (flags & CU_CTX_SCHED_MASK) == CU_CTX_SCHED_SPIN);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuDevicePrimaryCtxSetFlags(0, CU_CTX_SCHED_SPIN | CU_CTX_SCHED_YIELD));
    OK(cuDevicePrimaryCtxRelease(0));
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    REQUIRE(active == 1);

    /* A reset ends the context under everybody's hands, and releases nothing: as documented, who retained it releases it. */
    OK(cuCtxSetCurrent(first));
    CUdeviceptr memory;
    OK(cuMemAlloc(&memory, 1024));
    OK(cuDevicePrimaryCtxReset(0));
    require_active(0);
    EXPECT(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemFree(memory));
    EXPECT(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemAlloc(&memory, 1024));
    OK(cuDevicePrimaryCtxReset(0));
    OK(cuDevicePrimaryCtxRetain(&second, 0));
    REQUIRE(first == second);
    require_active(1);
    FAILS(cuMemFree(memory));
    OK(cuMemAlloc(&memory, 1024));
    OK(cuMemFree(memory));
    OK(cuDevicePrimaryCtxRelease(0));
    require_active(1);
    OK(cuDevicePrimaryCtxReset(0));
    OK(cuDevicePrimaryCtxRelease(0));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuDevicePrimaryCtxRelease(0));
    OK(cuDevicePrimaryCtxReset(0));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuDevicePrimaryCtxRelease(0));
    require_active(0);
}

int main(void)
{
    OK(cuInit(0));
    stack_of_contexts();
    settings();
    primary();
    return passed();
}
