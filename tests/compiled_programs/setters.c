/* What was set is what is read afterwards, by every attribute and limit there is and beyond; or it is refused. */
#include "driver.h"

enum { BEYOND = 40, POISON = 0x5b };

static const char *const ptx =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry first(.param .u64 data) { ret; }\n.visible .entry second(.param .u64 data) { ret; }\n";

/* Every limit takes a value or says that it does not; one that was taken is told at least as high, and after a lower one
 * something else. */
static void limits(void)
{
    int settable = 0;
    for (int limit = 0; limit < BEYOND; limit++) {
        size_t before = POISON, now = POISON;
        int known = cuCtxGetLimit(&before, limit) == 0;
        for (size_t wanted = 1024; wanted <= 65536; wanted *= 8) {
            if (cuCtxSetLimit(limit, wanted)) continue;
            OK(cuCtxGetLimit(&now, limit));
            /* Some are hints, and some have bounds: the fetch granularity, and what persists in the cache. */
            if (limit == CU_LIMIT_MAX_L2_FETCH_GRANULARITY || limit == CU_LIMIT_PERSISTING_L2_CACHE_SIZE)
                REQUIRE(now <= wanted);
            else
                REQUIRE(now >= wanted);
            settable++;
        }
        if (!known) FAILS(cuCtxSetLimit(limit, 1024));
        else cuCtxSetLimit(limit, before);
        if (known) OK(cuCtxGetLimit(&now, limit));
    }
    REQUIRE(settable > 6);
}

/* The context's preferences; those of functions have nothing that reads them. */
static void preferences(void)
{
    for (unsigned config = 0; config < BEYOND; config++) {
        CUfunc_cache cache = POISON;
        CUsharedconfig banks = POISON;
        if (cuCtxSetCacheConfig(config) == 0) {
            OK(cuCtxGetCacheConfig(&cache));
            /* A device without a choice has no preference. */
            REQUIRE(cache == config || cache == CU_FUNC_CACHE_PREFER_NONE);
        } else REQUIRE(config > CU_FUNC_CACHE_PREFER_EQUAL);
        if (cuCtxSetSharedMemConfig(config) == 0) {
            OK(cuCtxGetSharedMemConfig(&banks));
            REQUIRE(banks == config || banks == CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE
                    || banks == CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE);
        } else REQUIRE(config > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE);
    }
    cuCtxSetCacheConfig(0);
}

static void flags(void)
{
    for (unsigned bit = 0; bit < 32; bit++) {
        unsigned flags = POISON, set = 1u << bit;
        int active;
        if (cuCtxSetFlags(set) == 0) {
            OK(cuCtxGetFlags(&flags));
            REQUIRE((flags & set) == set);
        }
        if (cuDevicePrimaryCtxSetFlags(0, set) == 0) {
            OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
            REQUIRE((flags & set) == set && active == 1);
        }
    }
    OK(cuCtxSetFlags(0));
}

/* Of a function, of a kernel on a device, and of a kernel that is passed for its function: none tells what another was. */
static void functions(void)
{
    CUmodule module;
    CUlibrary library;
    CUfunction first, second;
    CUkernel kernel, other;
    int set = 0;
    OK(cuModuleLoadData(&module, ptx));
    OK(cuModuleGetFunction(&first, module, "first"));
    OK(cuModuleGetFunction(&second, module, "second"));
    OK(cuLibraryLoadData(&library, ptx, NULL, NULL, 0, NULL, NULL, 0));
    OK(cuLibraryGetKernel(&kernel, library, "first"));
    OK(cuLibraryGetKernel(&other, library, "second"));
    for (int which = 0; which < BEYOND; which++) {
        for (int wanted = 0; wanted <= 2; wanted++) {
            int before = POISON, value = POISON, after = POISON;
            int known = cuFuncGetAttribute(&before, which, second) == 0;
            if (cuFuncSetAttribute(first, which, wanted) == 0) {
                REQUIRE(known);
                OK(cuFuncGetAttribute(&value, which, first));
                REQUIRE(value == wanted);
                OK(cuFuncGetAttribute(&after, which, second));
                REQUIRE(after == before);
                set++;
            }
            known = cuKernelGetAttribute(&before, which, other, 0) == 0;
            if (cuKernelSetAttribute(which, wanted, kernel, 0) == 0) {
                REQUIRE(known);
                OK(cuKernelGetAttribute(&value, which, kernel, 0));
                REQUIRE(value == wanted);
                OK(cuKernelGetAttribute(&after, which, other, 0));
                REQUIRE(after == before);
                set++;
            }
        }
        for (unsigned config = 0; config < 8; config++) {
            REQUIRE((cuFuncSetCacheConfig(first, config) == 0) == (config <= 3));
            REQUIRE((cuKernelSetCacheConfig(kernel, config, 0) == 0) == (config <= 3));
        }
    }
    REQUIRE(set >= 6);
    OK(cuLibraryUnload(library));
    OK(cuModuleUnload(module));
}

/* How many bytes of an attribute of a stream, a launch or a kernel's node mean something. */
static size_t size_of(int which)
{
    switch (which) {
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW: return 28;
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION: return 12;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP: return 2;
    default: return 4;
    }
}

static CUlaunchAttributeValue value_of(int which, int number)
{
    CUlaunchAttributeValue value;
    memset(&value, 0, sizeof value);
    switch (which) {
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
        value.accessPolicyWindow = (CUaccessPolicyWindow){NULL, 0, number / 4.f, number, CU_ACCESS_PROPERTY_NORMAL};
        break;
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
        value.clusterDim.x = value.clusterDim.y = value.clusterDim.z = 1;
        break;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP: value.memSyncDomainMap.default_ = value.memSyncDomainMap.remote = 0; break;
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY: value.syncPolicy = 1 + number; break;
    case CU_LAUNCH_ATTRIBUTE_PRIORITY: value.priority = -number; break;
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION: value.cooperative = number % 2; break;
    default: value.cooperative = number;
    }
    return value;
}

/* Which kernel's node has it, or which stream. */
typedef CUresult set_fn(void *of, int which, const CUlaunchAttributeValue *value);
typedef CUresult get_fn(void *of, int which, CUlaunchAttributeValue *value);
static CUresult set_stream(void *of, int which, const CUlaunchAttributeValue *value) { return cuStreamSetAttribute(of, which, value); }
static CUresult get_stream(void *of, int which, CUlaunchAttributeValue *value) { return cuStreamGetAttribute(of, which, value); }
static CUresult set_node(void *of, int which, const CUlaunchAttributeValue *value) { return cuGraphKernelNodeSetAttribute(of, which, value); }
static CUresult get_node(void *of, int which, CUlaunchAttributeValue *value) { return cuGraphKernelNodeGetAttribute(of, which, value); }

/* Sets each attribute of `of`; `other`, of the same kind, keeps what it has. */
static int set_all(void *of, void *other, set_fn *set, get_fn *get)
{
    int taken = 0;
    for (int which = 0; which < BEYOND; which++)
        for (int number = 0; number < 3; number++) {
            CUlaunchAttributeValue wanted = value_of(which, number), got, before, after;
            memset(&got, POISON, sizeof got);
            int known = get(other, which, &before) == 0;
            if (set(of, which, &wanted)) continue;
            REQUIRE(known);
            OK(get(of, which, &got));
            REQUIRE(!memcmp(&got, &wanted, size_of(which)));
            OK(get(other, which, &after));
            REQUIRE(!memcmp(&before, &after, size_of(which)));
            taken++;
        }
    return taken;
}

static void streams_and_nodes(void)
{
    CUstream stream, other;
    CUgraph graph;
    CUgraphNode node, beside;
    CUmodule module;
    CUdeviceptr none = 0;
    void *arguments[] = {&none};
    CUDA_KERNEL_NODE_PARAMS kernel;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    REQUIRE(set_all(stream, other, set_stream, get_stream) > 3);
    OK(cuModuleLoadData(&module, ptx));
    memset(&kernel, 0, sizeof kernel);
    OK(cuModuleGetFunction(&kernel.func, module, "first"));
    kernel.gridDimX = kernel.gridDimY = kernel.gridDimZ = kernel.blockDimX = kernel.blockDimY = kernel.blockDimZ = 1;
    kernel.kernelParams = arguments;
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddKernelNode(&node, graph, NULL, 0, &kernel));
    OK(cuGraphAddKernelNode(&beside, graph, NULL, 0, &kernel));
    REQUIRE(set_all(node, beside, set_node, get_node) > 3);
    OK(cuGraphDestroy(graph));
    OK(cuStreamDestroy(stream));
    OK(cuStreamDestroy(other));
    OK(cuModuleUnload(module));
}

static void pools(void)
{
    CUmemoryPool pool, other;
    CUmemPoolProps properties;
    int taken = 0;
    memset(&properties, 0, sizeof properties);
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    OK(cuMemPoolCreate(&pool, &properties));
    OK(cuMemPoolCreate(&other, &properties));
    for (int which = 0; which < BEYOND; which++)
        for (int number = 0; number < 3; number++) {
            cuuint64_t wanted = number == 2 ? 3ull << 33 : (cuuint64_t)number, got = 0, before = 0, after = 0;
            /* Three are flags, of four bytes. */
            int flag = which >= 1 && which <= 3;
            if (flag && number == 2) continue;
            int known = cuMemPoolGetAttribute(other, which, &before) == 0;
            if (cuMemPoolSetAttribute(pool, which, &wanted)) continue;
            REQUIRE(known);
            OK(cuMemPoolGetAttribute(pool, which, &got));
            REQUIRE(got == wanted);
            OK(cuMemPoolGetAttribute(other, which, &after));
            REQUIRE(after == before);
            taken++;
        }
    REQUIRE(taken >= 8);
    OK(cuMemPoolDestroy(pool));
    OK(cuMemPoolDestroy(other));
}

static void pointers(void)
{
    CUdeviceptr data, beside;
    int taken = 0;
    unsigned marked = POISON;
    OK(cuMemAlloc(&data, 4096));
    OK(cuMemAlloc(&beside, 4096));
    for (int which = 0; which < BEYOND; which++)
        for (unsigned wanted = 0; wanted < 2; wanted++) {
            unsigned long long got = 0, before = 0, after = 0;
            int known = cuPointerGetAttribute(&before, which, beside) == 0;
            if (cuPointerSetAttribute(&wanted, which, data)) continue;
            REQUIRE(known);
            OK(cuPointerGetAttribute(&got, which, data));
            REQUIRE((unsigned)got == wanted);
            OK(cuPointerGetAttribute(&got, which, data + 100));
            REQUIRE((unsigned)got == wanted);
            OK(cuPointerGetAttribute(&after, which, beside));
            REQUIRE(after == before);
            taken++;
        }
    REQUIRE(taken == 2);
    /* New memory has nothing of what lay there before. */
    OK(cuMemFree(data));
    OK(cuMemAlloc(&data, 4096));
    OK(cuPointerGetAttribute(&marked, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, data));
    REQUIRE(!marked);
    OK(cuMemFree(data));
    OK(cuMemFree(beside));
}

static void graph_memory(void)
{
    for (int which = 0; which < BEYOND; which++)
        for (cuuint64_t wanted = 0; wanted < 3; wanted++) {
            cuuint64_t got = POISON;
            if (cuDeviceSetGraphMemAttribute(0, which, &wanted)) continue;
            OK(cuDeviceGetGraphMemAttribute(0, which, &got));
            REQUIRE(got == wanted);
        }
}

int main(void)
{
    start();
    limits();
    preferences();
    flags();
    functions();
    streams_and_nodes();
    pools();
    pointers();
    graph_memory();
    return passed();
}
