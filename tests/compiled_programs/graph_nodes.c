/* What is asked and changed of graphs' nodes, memory that graphs allocate, and objects that live as long as they do. */
#include <string.h>
#include <unistd.h>
#include "graph.h"

static CUfunction scale;
static CUdeviceptr data;
static CUcontext context;

static CUDA_KERNEL_NODE_PARAMS kernel_node(void **parameters)
{
    return (CUDA_KERNEL_NODE_PARAMS){.func = scale, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = WORDS,
                                     .blockDimY = 1, .blockDimZ = 1, .kernelParams = parameters};
}

static CUDA_MEMSET_NODE_PARAMS fill_of(CUdeviceptr where, unsigned value)
{
    return (CUDA_MEMSET_NODE_PARAMS){.dst = where, .elementSize = 4, .value = value, .width = WORDS, .height = 1};
}

static void CUDA_CB count(void *number) { ++*(volatile int *)number; }

/* A graph fills data and scales it: two nodes. */
static CUgraph small(unsigned value, unsigned factor, CUgraphNode *fill, CUgraphNode *kernel)
{
    CUgraph graph;
    void *parameters[] = {&data, &factor};
    CUDA_KERNEL_NODE_PARAMS launch_of = kernel_node(parameters);
    CUDA_MEMSET_NODE_PARAMS filled = fill_of(data, value);
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddMemsetNode(fill, graph, NULL, 0, &filled, context));
    OK(cuGraphAddKernelNode(kernel, graph, fill, 1, &launch_of));
    return graph;
}

/* A node tells what it was given, whether it was added or captured. */
static void described(void)
{
    static unsigned words[WORDS], other_words[WORDS];
    CUgraph graph;
    CUgraphNode nodes[4], host;
    CUstream stream;
    CUevent event, told;
    size_t number = 4;
    unsigned factor = 6;
    void *parameters[] = {&data, &factor};
    int calls = 0, other_calls = 0;
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuMemsetD32Async(data, 3, WORDS, stream));
    OK(cuLaunchKernel(scale, 1, 1, 1, WORDS, 1, 1, 0, stream, parameters, NULL));
    OK(cuMemcpyDtoHAsync(words, data, sizeof words, stream));
    OK(cuEventRecordWithFlags(event, stream, CU_EVENT_RECORD_EXTERNAL));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphGetNodes(graph, nodes, &number));
    REQUIRE(number == 4);

    CUDA_MEMSET_NODE_PARAMS filled;
    OK(cuGraphMemsetNodeGetParams(nodes[0], &filled));
    REQUIRE(filled.dst == data && filled.value == 3 && filled.elementSize == 4 && filled.width == WORDS);
    CUDA_KERNEL_NODE_PARAMS launched;
    OK(cuGraphKernelNodeGetParams(nodes[1], &launched));
    REQUIRE(launched.func == scale && launched.blockDimX == WORDS && launched.ctx == context);
    REQUIRE(*(CUdeviceptr *)launched.kernelParams[0] == data && *(unsigned *)launched.kernelParams[1] == 6);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphKernelNodeGetParams(nodes[0], &launched));
    CUDA_MEMCPY3D copied;
    OK(cuGraphMemcpyNodeGetParams(nodes[2], &copied));
    REQUIRE(copied.srcDevice == data && copied.dstHost == words && copied.WidthInBytes == sizeof words);
    OK(cuGraphEventRecordNodeGetEvent(nodes[3], &told));
    REQUIRE(told == event);

    /* What was told can be given back. */
    factor = 2;
    launched.kernelParams = parameters;
    OK(cuGraphKernelNodeSetParams(nodes[1], &launched));
    copied.dstHost = other_words;
    OK(cuGraphMemcpyNodeSetParams(nodes[2], &copied));
    filled.value = 4;
    OK(cuGraphMemsetNodeSetParams(nodes[0], &filled));
    CUDA_HOST_NODE_PARAMS calling = {count, &calls}, kept;
    OK(cuGraphAddHostNode(&host, graph, &nodes[2], 1, &calling));
    OK(cuGraphHostNodeGetParams(host, &kept));
    REQUIRE(kept.fn == count && kept.userData == &calls);

    CUlaunchAttributeValue set = {.priority = -1}, got;
    OK(cuGraphKernelNodeSetAttribute(nodes[1], CU_LAUNCH_ATTRIBUTE_PRIORITY, &set));
    OK(cuGraphKernelNodeGetAttribute(nodes[1], CU_LAUNCH_ATTRIBUTE_PRIORITY, &got));
    REQUIRE(got.priority == -1);
    CUgraphNode twin;
    OK(cuGraphAddKernelNode(&twin, graph, &nodes[2], 1, &launched));
    OK(cuGraphKernelNodeCopyAttributes(twin, nodes[1]));
    got.priority = 0;
    OK(cuGraphKernelNodeGetAttribute(twin, CU_LAUNCH_ATTRIBUTE_PRIORITY, &got));
    REQUIRE(got.priority == -1);
    OK(cuGraphDestroyNode(twin));

    CUgraphExec exec;
    OK(cuGraphInstantiate(&exec, graph, 0));
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    REQUIRE(words[0] == 0 && other_words[0] == 4 * 2 + 5 && calls == 1);
    calling.userData = &other_calls;
    OK(cuGraphExecHostNodeSetParams(exec, host, &calling));
    copied.dstHost = words;
    OK(cuGraphExecMemcpyNodeSetParams(exec, nodes[2], &copied, context));
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    REQUIRE(words[0] == 4 * 2 + 5 && calls == 1 && other_calls == 1);
    OK(cuGraphHostNodeSetParams(host, &calling));
    OK(cuGraphHostNodeGetParams(host, &kept));
    REQUIRE(kept.userData == &other_calls);

    char path[] = "/tmp/remotegpu-graph-XXXXXX", text[4096] = {0};
    int file = mkstemp(path);
    OK(cuGraphDebugDotPrint(graph, path, 0));
    REQUIRE(read(file, text, sizeof text - 1) > 0 && !strncmp(text, "digraph", 7) && strstr(text, "->"));
    close(file);
    unlink(path);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuStreamDestroy(stream));
    OK(cuEventDestroy(event));
}

/* An executable takes over a graph of the same shape, and says what of another does not fit. */
static void updated(void)
{
    CUgraph first, second, third;
    CUgraphNode fill, kernel, again, more;
    CUgraphExec exec;
    CUgraphExecUpdateResultInfo info;
    first = small(1, 2, &fill, &kernel);
    OK(cuGraphInstantiate(&exec, first, 0));
    OK(cuGraphLaunch(exec, NULL));
    REQUIRE(word(data) == 1 * 2 + 5);
    CUgraphNode fill2, kernel2;
    second = small(10, 3, &fill2, &kernel2);
    OK(cuGraphExecUpdate(exec, second, &info));
    REQUIRE(info.result == CU_GRAPH_EXEC_UPDATE_SUCCESS);
    OK(cuGraphLaunch(exec, NULL));
    REQUIRE(word(data) == 10 * 3 + 5);

    OK(cuGraphAddEmptyNode(&more, second, NULL, 0));
    EXPECT(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate(exec, second, &info));
    REQUIRE(info.result == CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED && info.errorNode == NULL);
    CUDA_MEMSET_NODE_PARAMS filled = fill_of(data, 4);
    OK(cuGraphCreate(&third, 0));
    OK(cuGraphAddMemsetNode(&fill2, third, NULL, 0, &filled, context));
    OK(cuGraphAddMemsetNode(&again, third, &fill2, 1, &filled, context));
    EXPECT(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate(exec, third, &info));
    REQUIRE(info.result == CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED && info.errorNode == again);

    /* A node that is switched off does nothing. */
    unsigned enabled;
    OK(cuGraphNodeGetEnabled(exec, kernel, &enabled));
    REQUIRE(enabled == 1);
    OK(cuGraphNodeSetEnabled(exec, kernel, 0));
    OK(cuGraphLaunch(exec, NULL));
    REQUIRE(word(data) == 10);
    OK(cuGraphNodeSetEnabled(exec, kernel, 1));
    OK(cuGraphLaunch(exec, NULL));
    REQUIRE(word(data) == 10 * 3 + 5);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(first));
    OK(cuGraphDestroy(second));
    OK(cuGraphDestroy(third));
}

/* The general form of a node's parameters. */
static void general(void)
{
    CUgraph graph, child;
    CUgraphNode fill, kernel, inner;
    CUgraphExec exec;
    unsigned factor = 5;
    void *parameters[] = {&data, &factor};
    CUgraphNodeParams filled = {.type = CU_GRAPH_NODE_TYPE_MEMSET, .memset = {.dst = data, .elementSize = 4, .value = 2,
                                .width = WORDS, .height = 1, .ctx = context}};
    CUgraphNodeParams launched = {.type = CU_GRAPH_NODE_TYPE_KERNEL, .kernel = {.func = scale, .gridDimX = 1, .gridDimY
                                  = 1, .gridDimZ = 1, .blockDimX = WORDS, .blockDimY = 1, .blockDimZ = 1, .kernelParams
                                  = parameters}};
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphCreate(&child, 0));
    OK(cuGraphAddNode(&inner, child, NULL, NULL, 0, &launched));
    OK(cuGraphAddNode(&fill, graph, NULL, NULL, 0, &filled));
    CUgraphNodeParams nested = {.type = CU_GRAPH_NODE_TYPE_GRAPH, .graph = {.graph = child}};
    OK(cuGraphAddNode(&kernel, graph, &fill, NULL, 1, &nested));
    OK(cuGraphInstantiate(&exec, graph, 0));
    OK(cuGraphLaunch(exec, NULL));
    REQUIRE(word(data) == 2 * 5 + 5);
    filled.memset.value = 7;
    OK(cuGraphExecNodeSetParams(exec, fill, &filled));
    factor = 6;
    OK(cuGraphNodeSetParams(inner, &launched));
    OK(cuGraphExecChildGraphNodeSetParams(exec, kernel, child));
    OK(cuGraphLaunch(exec, NULL));
    REQUIRE(word(data) == 7 * 6 + 5);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphExecNodeSetParams(exec, fill, &launched));
    CUgraph found = NULL;
    size_t nodes = 0;
    OK(cuGraphChildGraphNodeGetGraph(kernel, &found));
    REQUIRE(found != child && found != graph);
    OK(cuGraphGetNodes(found, NULL, &nodes));
    REQUIRE(nodes == 1);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuGraphDestroy(child));
}

/* Memory that a graph allocates: freed within it, or by the program, and never had twice. */
static void allocated(void)
{
    CUgraph graph, clone;
    CUgraphExec exec;
    CUgraphNode node;
    CUdeviceptr memory, kept;
    CUstream stream;
    cuuint64_t used;
    unsigned factor = 3;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuMemAllocAsync(&memory, WORDS * 4, stream));
    OK(cuMemAllocAsync(&kept, WORDS * 4, stream));
    void *parameters[] = {&memory, &factor};
    OK(cuMemsetD32Async(memory, 8, WORDS, stream));
    OK(cuLaunchKernel(scale, 1, 1, 1, WORDS, 1, 1, 0, stream, parameters, NULL));
    OK(cuMemcpyDtoDAsync(kept, memory, WORDS * 4, stream));
    OK(cuMemFreeAsync(memory, stream));
    OK(cuStreamEndCapture(stream, &graph));
    CUgraphNode nodes[6];
    CUdeviceptr freed;
    size_t number = 6;
    OK(cuGraphGetNodes(graph, nodes, &number));
    OK(cuGraphMemFreeNodeGetParams(nodes[5], &freed));
    REQUIRE(number == 6 && freed == memory);
    REQUIRE(memory != kept);
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, cuGraphClone(&clone, graph));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree(kept));
    OK(cuGraphInstantiate(&exec, graph, 0));
    OK(cuGraphLaunch(exec, stream));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    REQUIRE(word(kept) == 8 * 3 + 5);
    OK(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &used));
    REQUIRE(used == WORDS * 4);
    OK(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &used));
    REQUIRE(used == 2 * WORDS * 4);
    used = 0;
    OK(cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &used));
    OK(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &used));
    REQUIRE(used == WORDS * 4);
    OK(cuMemFreeAsync(kept, stream));
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    /* The graph is gone, its memory is not. */
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    REQUIRE(word(kept) == 8 * 3 + 5);
    OK(cuMemFree(kept));
    OK(cuDeviceGraphMemTrim(0));
    EXPECT(CUDA_ERROR_INVALID_DEVICE, cuDeviceGraphMemTrim(99));
    OK(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &used));
    REQUIRE(used == 0);

    CUDA_MEM_ALLOC_NODE_PARAMS wanted = {.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location =
                                         {CU_MEM_LOCATION_TYPE_DEVICE, 0}}, .bytesize = 4096};
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &wanted));
    REQUIRE(wanted.dptr);
    CUDA_MEM_ALLOC_NODE_PARAMS told;
    OK(cuGraphMemAllocNodeGetParams(node, &told));
    REQUIRE(told.dptr == wanted.dptr && told.bytesize == 4096);
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, cuGraphDestroyNode(node));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemFreeNode(&node, graph, &node, 1, data));
    wanted.bytesize = (size_t)1 << 44;
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuGraphAddMemAllocNode(&node, graph, NULL, 0, &wanted));
    OK(cuGraphInstantiate(&exec, graph, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH));
    OK(cuGraphLaunch(exec, stream));
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuMemFree(told.dptr));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuStreamDestroy(stream));
}

/* An object's destructor is called when the last of program, graphs and executables is gone. */
static void objects(void)
{
    static int destroyed;
    CUuserObject object;
    CUgraph graph, clone;
    CUgraphExec exec;
    CUgraphNode fill, kernel;
    graph = small(1, 1, &fill, &kernel);
    OK(cuUserObjectCreate(&object, &destroyed, count, 2, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    OK(cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
    OK(cuUserObjectRetain(object, 1));
    OK(cuUserObjectRelease(object, 2));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuUserObjectRelease(object, 5));
    OK(cuGraphInstantiate(&exec, graph, 0));
    OK(cuGraphClone(&clone, graph));
    OK(cuGraphDestroy(graph));
    OK(cuGraphReleaseUserObject(clone, object, 1));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphReleaseUserObject(clone, object, 1));
    OK(cuGraphDestroy(clone));
    REQUIRE(!destroyed);
    OK(cuGraphLaunch(exec, NULL));
    OK(cuGraphExecDestroy(exec));
    for (int i = 0; !destroyed && i < 5000; i++) usleep(1000);
    REQUIRE(destroyed == 1);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuUserObjectRetain(object, 1));
}

int main(void)
{
    CUmodule module;
    context = start();
    OK(cuModuleLoadData(&module, scale_ptx));
    OK(cuModuleGetFunction(&scale, module, "scale"));
    OK(cuMemAlloc(&data, WORDS * 4));
    described();
    updated();
    general();
    allocated();
    objects();
    return passed();
}
