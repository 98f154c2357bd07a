/* What the device says of flags and places, and what functions answer that are given them, are the same: "not supported"
 * where the attribute is 0, success where it is not. With an argument: only lists all attributes. */
#include "driver.h"

static void matches(CUdevice_attribute which, CUresult result)
{
    CUresult expected = attribute(which) ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
    if (result != expected) {
        fprintf(stderr, "attribute %d is %d, the call answers %d\n", which, attribute(which), result);
        exit(1);
    }
}

static void list(void)
{
    for (int which = 1; which < CU_DEVICE_ATTRIBUTE_MAX; which++) {
        int value;
        if (cuDeviceGetAttribute(&value, which, 0) == CUDA_SUCCESS) printf("%d %d\n", which, value);
    }
}

/* The granularity is known even where the memory is refused: NCCL asks for it first. */
static CUresult create(CUmemLocationType type)
{
    CUmemAllocationProp wanted = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = type, .id = 0}};
    CUmemGenericAllocationHandle handle;
    size_t granularity = 0;
    OK(cuMemGetAllocationGranularity(&granularity, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    REQUIRE(granularity >= 4096);
    CUresult created = cuMemCreate(&handle, granularity, &wanted, 0);
    if (!created) OK(cuMemRelease(handle));
    return created;
}

static CUresult create_pool(CUmemLocationType type)
{
    CUmemPoolProps wanted = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = type, .id = 0}};
    CUmemoryPool pool;
    CUresult created = cuMemPoolCreate(&pool, &wanted);
    if (!created) OK(cuMemPoolDestroy(pool));
    return created;
}

static void places(void)
{
    matches(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, create(CU_MEM_LOCATION_TYPE_DEVICE));
    matches(CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, create(CU_MEM_LOCATION_TYPE_HOST));
    matches(CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, create(CU_MEM_LOCATION_TYPE_HOST_NUMA));
    CUmemAllocationProp none = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT}};
    CUmemAllocationProp shared = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                  .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                  .location = {.type = CU_MEM_LOCATION_TYPE_HOST}};
    CUmemGenericAllocationHandle handle;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&handle, 2 << 20, &none, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&handle, 2 << 20, &shared, 0));
    matches(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, create_pool(CU_MEM_LOCATION_TYPE_DEVICE));
    matches(CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED, create_pool(CU_MEM_LOCATION_TYPE_HOST));
    matches(CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED, create_pool(CU_MEM_LOCATION_TYPE_HOST_NUMA));
}

/* 6 is CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN of CUDA 13, which older headers do not have. */
static void no_places(void)
{
    static const int types[] = {CU_MEM_LOCATION_TYPE_INVALID, 5, 6, 99};
    for (int i = 0; i < 4; i++) {
        CUresult expected = types[i] == 6 ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
        CUmemAllocationProp wanted = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = types[i]}};
        CUmemGenericAllocationHandle handle;
        size_t granularity;
        EXPECT(expected, cuMemGetAllocationGranularity(&granularity, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
        EXPECT(expected, cuMemCreate(&handle, 2 << 20, &wanted, 0));
        EXPECT(expected, create_pool(types[i]));
    }
}

static void host_memory(void)
{
    static char host[8192] __attribute__((aligned(4096)));
    CUresult registered = cuMemHostRegister(host, sizeof host, CU_MEMHOSTREGISTER_READ_ONLY);
    matches(CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, registered);
    if (!registered) OK(cuMemHostUnregister(host));
    registered = cuMemHostRegister(host, sizeof host, 0);
    matches(CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, registered);
    if (!registered) OK(cuMemHostUnregister(host));
}

static void launches(void)
{
    CUmodule module;
    CUfunction nothing;
    OK(cuModuleLoadData(&module, scale_ptx));
    OK(cuModuleGetFunction(&nothing, module, "nothing"));
    matches(CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, cuLaunchCooperativeKernel(nothing, 1, 1, 1, 1, 1, 1, 0, NULL, NULL));

    CUlaunchAttribute cluster = {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, .value.clusterDim = {2, 1, 1}};
    CUlaunchConfig config = {.gridDimX = 2, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 32, .blockDimY = 1, .blockDimZ = 1,
                             .attrs = &cluster, .numAttrs = 1};
    int clusters = 0;
    OK(cuOccupancyMaxActiveClusters(&clusters, nothing, &config));
    matches(CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, clusters ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED);
    OK(cuCtxSynchronize());
    OK(cuModuleUnload(module));
}

int main(int count, char **arguments)
{
    (void)arguments;
    start();
    if (count > 1) {
        list();
        return 0;
    }
    places();
    no_places();
    host_memory();
    launches();
    OK(cuDevicePrimaryCtxRelease(0));
    return passed();
}
