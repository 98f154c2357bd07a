/* What is not provided says so in the three places where programs look: the device's attribute is 0, the function is
 * there and answers "not supported", and nothing of it hangs or disturbs what comes after. */
#include "driver.h"

/* Whether the attribute and the call tell the same. */
static void matches(const char *what, CUdevice_attribute which, CUresult result)
{
    CUresult expected = attribute(which) ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
    if (result != expected) {
        fprintf(stderr, "%s: attribute %d, call %d\n", what, attribute(which), result);
        exit(1);
    }
}

#define REFUSED(call) EXPECT(CUDA_ERROR_NOT_SUPPORTED, call)

static void graphs(void)
{
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec exec;
    CUDA_BATCH_MEM_OP_NODE_PARAMS operations = {0};
    OK(cuGraphCreate(&graph, 0));
    REFUSED(cuGraphAddBatchMemOpNode(&node, graph, NULL, 0, &operations));
    REFUSED(cuGraphAddBatchMemOpNode(&node, graph, NULL, 0, &operations)); /* one line in the log for both */
    REFUSED(cuGraphInstantiate(&exec, graph, CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH));
    OK(cuGraphDestroy(graph));
}

static void between_processes(CUdeviceptr memory)
{
    CUipcMemHandle of_memory;
    CUevent event;
    matches("memory between processes", CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, cuIpcGetMemHandle(&of_memory, memory));
    matches("events between processes", CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED,
            cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
    CUmemAllocationProp wanted = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                  .requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC,
                                  .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUmemGenericAllocationHandle shared;
    matches("memory that is exported to a fabric", CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED,
            cuMemCreate(&shared, 2 << 20, &wanted, 0));
    /* torch's expandable segments ask for this form without exporting anything. */
    wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    OK(cuMemCreate(&shared, 2 << 20, &wanted, 0));
    int file;
    matches("memory as a descriptor", CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
            cuMemExportToShareableHandle(&file, shared, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemRelease(shared));
}

static void kinds_of_memory(CUstream stream)
{
    CUarray cube;
    CUDA_ARRAY3D_DESCRIPTOR faces = {.Width = 8, .Height = 8, .Depth = 6, .Format = CU_AD_FORMAT_FLOAT,
                                     .NumChannels = 1, .Flags = CUDA_ARRAY3D_CUBEMAP};
    REFUSED(cuArray3DCreate(&cube, &faces));
    REQUIRE(attribute(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS) == 0);
    REQUIRE(attribute(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS) == 0);

    CUDA_EXTERNAL_MEMORY_HANDLE_DESC description;
    CUexternalMemory external;
    memset(&description, 0, sizeof description);
    description.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
    REFUSED(cuImportExternalMemory(&external, &description));

    CUmipmappedArray levels;
    CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = 16, .Height = 16, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    REFUSED(cuMipmappedArrayCreate(&levels, &shape, 2));

    CUmulticastObjectProp several = {.numDevices = 1, .size = 2 << 20};
    CUmemGenericAllocationHandle all;
    matches("multicast", CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, cuMulticastCreate(&all, &several));
}

static void ways_to_run(CUcontext context, CUstream stream)
{
    CUdevResource resource;
    CUexecAffinityParam affinity;
    int supported = -1;
    REFUSED(cuCtxGetDevResource(context, &resource, CU_DEV_RESOURCE_TYPE_SM));
    OK(cuDeviceGetExecAffinitySupport(&supported, CU_EXEC_AFFINITY_TYPE_SM_COUNT, 0));
    REQUIRE(supported == 0);
    REFUSED(cuCtxGetExecAffinity(&affinity, CU_EXEC_AFFINITY_TYPE_SM_COUNT));
    REQUIRE(attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR_V1) == 0);
    REFUSED(cuLaunchCooperativeKernelMultiDevice(NULL, 0, 0));
    REFUSED(cuCoredumpGetAttributeGlobal(CU_COREDUMP_ENABLE_ON_EXCEPTION, &supported, &(size_t){4}));
    OK(cuStreamSynchronize(stream));
}

int main(void)
{
    CUcontext context = start();
    CUstream stream;
    CUdeviceptr memory;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc(&memory, 4096));
    graphs();
    between_processes(memory);
    kinds_of_memory(stream);
    ways_to_run(context, stream);

    /* Nothing of it is held against the program. */
    unsigned word = 0;
    OK(cuMemsetD32Async(memory, 42, 1, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuMemcpyDtoH(&word, memory, 4));
    REQUIRE(word == 42);
    OK(cuMemFree(memory));
    OK(cuStreamDestroy(stream));
    OK(cuDevicePrimaryCtxRelease(0));
    return passed();
}
