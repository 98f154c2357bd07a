/* What waits for what in a graph, events of the outside, and captures into a graph that exists. */
#include <unistd.h>
#include "driver.h"

static CUfunction scale;
static CUdeviceptr data;
static CUcontext context;

static CUresult launch(CUstream stream, unsigned factor)
{
    void *parameters[] = {&data, &factor};
    return cuLaunchKernel(scale, 1, 1, 1, WORDS, 1, 1, 0, stream, parameters, NULL);
}

static unsigned word(void)
{
    unsigned value;
    OK(cuMemcpyDtoH(&value, data, sizeof value));
    return value;
}

static void CUDA_CB until(void *is_open) { while (!*(volatile int *)is_open) usleep(1000); }

static void edges(void)
{
    CUgraph graph;
    CUgraphNode a, b, c, from[4], to[4];
    CUgraphEdgeData kinds[4];
    memset(to, 77, sizeof to);
    memset(from, 77, sizeof from);
    memset(kinds, 77, sizeof kinds);
    size_t count;
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddEmptyNode(&a, graph, NULL, 0));
    OK(cuGraphAddEmptyNode(&b, graph, &a, 1));
    OK(cuGraphAddEmptyNode(&c, graph, NULL, 0));
    OK(cuGraphAddDependencies(graph, &a, &c, NULL, 1));
    OK(cuGraphAddDependencies(graph, &b, &c, NULL, 1));
    count = 4;
    OK(cuGraphGetEdges(graph, from, to, kinds, &count));
    REQUIRE(count == 3 && from[0] == a && to[0] == b && kinds[0].type == CU_GRAPH_DEPENDENCY_TYPE_DEFAULT);
    /* Room that is not needed is filled with zeros. */
    REQUIRE(from[3] == NULL && to[3] == NULL && kinds[3].type == 0);
    count = 4;
    OK(cuGraphNodeGetDependencies(c, from, NULL, &count));
    REQUIRE(count == 2 && from[0] == a && from[1] == b);
    count = 1;
    OK(cuGraphNodeGetDependentNodes(a, to, NULL, &count));
    REQUIRE(count == 1 && to[0] == b);
    OK(cuGraphNodeGetDependentNodes(a, NULL, NULL, &count));
    REQUIRE(count == 2);
    OK(cuGraphRemoveDependencies(graph, &a, &c, NULL, 1));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphRemoveDependencies(graph, &a, &c, NULL, 1));
    OK(cuGraphNodeGetDependencies(c, NULL, NULL, &count));
    REQUIRE(count == 1);
    OK(cuGraphDestroy(graph));
}

/* A graph waits for an event that another stream records, and records one itself. */
static void events(void)
{
    CUgraph graph;
    CUgraphNode wait, fill, record;
    CUgraphExec exec;
    CUstream stream, other;
    CUevent before, after, third, told;
    CUDA_MEMSET_NODE_PARAMS filled = {.dst = data, .elementSize = 4, .value = 2, .width = WORDS, .height = 1};
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&before, CU_EVENT_DISABLE_TIMING));
    OK(cuEventCreate(&after, CU_EVENT_DISABLE_TIMING));
    OK(cuEventCreate(&third, CU_EVENT_DISABLE_TIMING));
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddEventWaitNode(&wait, graph, NULL, 0, third));
    OK(cuGraphEventWaitNodeSetEvent(wait, before));
    OK(cuGraphEventWaitNodeGetEvent(wait, &told));
    REQUIRE(told == before);
    OK(cuGraphAddMemsetNode(&fill, graph, &wait, 1, &filled, context));
    OK(cuGraphAddEventRecordNode(&record, graph, &fill, 1, third));
    OK(cuGraphEventRecordNodeSetEvent(record, after));
    OK(cuGraphEventRecordNodeGetEvent(record, &told));
    REQUIRE(told == after);
    CUDA_GRAPH_INSTANTIATE_PARAMS how = {.flags = CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY, .hUploadStream = stream};
    cuuint64_t flags = 0;
    how.result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
    OK(cuGraphInstantiateWithParams(&exec, graph, &how));
    REQUIRE(how.result_out == CUDA_GRAPH_INSTANTIATE_SUCCESS);
    OK(cuGraphExecGetFlags(exec, &flags));
    REQUIRE(flags == CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY);
    OK(cuGraphUpload(exec, stream));
    FAILS(cuGraphUpload(NULL, stream));

    OK(cuMemsetD32Async(data, 9, WORDS, other));
    OK(cuEventRecord(before, other));
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamWaitEvent(other, after, 0));
    OK(launch(other, 10));
    OK(cuStreamSynchronize(other));
    REQUIRE(word() == 2 * 10 + 5);

    /* Other events: of those before nothing is recorded any more. */
    OK(cuGraphExecEventWaitNodeSetEvent(exec, wait, after));
    OK(cuGraphExecEventRecordNodeSetEvent(exec, record, third));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphExecEventWaitNodeSetEvent(exec, fill, after));
    volatile int is_open = 0;
    OK(cuLaunchHostFunc(other, until, (void *)&is_open));
    OK(cuEventRecord(after, other));
    OK(cuGraphLaunch(exec, stream));
    /* The graph waits, and so does what it records. */
    EXPECT(CUDA_ERROR_NOT_READY, cuEventQuery(third));
    is_open = 1;
    OK(cuStreamWaitEvent(other, third, 0));
    OK(launch(other, 3));
    OK(cuStreamSynchronize(other));
    REQUIRE(word() == 2 * 3 + 5);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuStreamDestroy(stream));
    OK(cuStreamDestroy(other));
    OK(cuEventDestroy(before));
    OK(cuEventDestroy(after));
    OK(cuEventDestroy(third));
}

/* A capture goes on in a graph that exists, and the program says what its next work waits for. */
static void continued(void)
{
    CUgraph graph, captured;
    CUgraphNode fill, first, second;
    CUgraphExec exec;
    CUstream stream;
    CUstreamCaptureStatus status;
    cuuint64_t id;
    const CUgraphNode *waits;
    const CUgraphEdgeData *kinds;
    size_t count;
    CUDA_MEMSET_NODE_PARAMS filled = {.dst = data, .elementSize = 4, .value = 3, .width = WORDS, .height = 1};
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddMemsetNode(&fill, graph, NULL, 0, &filled, context));
    OK(cuStreamBeginCaptureToGraph(stream, graph, &fill, NULL, 1, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(launch(stream, 4));
    OK(cuStreamGetCaptureInfo(stream, &status, &id, &captured, &waits, &kinds, &count));
    REQUIRE(status == CU_STREAM_CAPTURE_STATUS_ACTIVE && captured == graph && count == 1 && waits[0] != fill);
    first = waits[0];
    OK(cuStreamUpdateCaptureDependencies(stream, &fill, NULL, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
    OK(cuStreamGetCaptureInfo(stream, &status, &id, &captured, &waits, &kinds, &count));
    REQUIRE(count == 1 && waits[0] == fill);
    OK(cuStreamUpdateCaptureDependencies(stream, &first, NULL, 1, CU_STREAM_ADD_CAPTURE_DEPENDENCIES));
    OK(launch(stream, 2));
    OK(cuStreamGetCaptureInfo(stream, &status, &id, &captured, &waits, &kinds, &count));
    second = waits[0];
    OK(cuStreamEndCapture(stream, &captured));
    REQUIRE(captured == graph);
    OK(cuStreamBeginCaptureToGraph(stream, graph, &second, NULL, 1, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(launch(stream, 3));
    OK(cuStreamEndCapture(stream, NULL)); /* the program has the graph already */
    OK(cuGraphNodeGetDependencies(second, NULL, NULL, &count));
    REQUIRE(count == 2);
    OK(cuGraphInstantiate(&exec, graph, 0));
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    REQUIRE(word() == ((3 * 4 + 5) * 2 + 5) * 3 + 5);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuStreamDestroy(stream));
}

int main(void)
{
    CUmodule module;
    context = start();
    OK(cuModuleLoadData(&module, scale_ptx));
    OK(cuModuleGetFunction(&scale, module, "scale"));
    OK(cuMemAlloc(&data, WORDS * 4));
    edges();
    events();
    continued();
    return passed();
}
