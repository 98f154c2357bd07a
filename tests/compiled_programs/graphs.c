/* Graphs: captured from streams and built by hand, launched again and again, changed in between. */
#include "graph.h"

static CUfunction scale;
static CUdeviceptr data, other;

static CUresult launch(CUstream stream, CUdeviceptr where, unsigned factor)
{
    void *parameters[] = {&where, &factor};
    return cuLaunchKernel(scale, 1, 1, 1, WORDS, 1, 1, 0, stream, parameters, NULL);
}

static CUDA_KERNEL_NODE_PARAMS kernel_node(void **parameters)
{
    return (CUDA_KERNEL_NODE_PARAMS){.func = scale, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = WORDS,
                                     .blockDimY = 1, .blockDimZ = 1, .kernelParams = parameters};
}

static CUstreamCaptureStatus status_of(CUstream stream)
{
    CUstreamCaptureStatus status;
    OK(cuStreamIsCapturing(stream, &status));
    return status;
}

static size_t nodes_of(CUgraph graph)
{
    size_t count;
    OK(cuGraphGetNodes(graph, NULL, &count));
    return count;
}

static void CUDA_CB count(void *number) { ++*(volatile int *)number; }

/* Nothing of a captured stream happens before its graph is launched, and then all of it happens each time. */
static void captured(void)
{
    static int calls;
    static unsigned source[WORDS], result[WORDS];
    CUgraph graph;
    CUgraphExec exec;
    CUstream stream = new_stream();
    fill(data, 7, WORDS);
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    REQUIRE(status_of(stream) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    OK(cuMemcpyHtoDAsync(data, source, sizeof source, stream));
    OK(launch(stream, data, 3));
    OK(cuMemsetD32Async(data, 9, 1, stream));
    OK(cuLaunchHostFunc(stream, count, &calls));
    OK(cuMemcpyDtoHAsync(result, data, sizeof result, stream));
    OK(cuStreamEndCapture(stream, &graph));
    REQUIRE(status_of(stream) == CU_STREAM_CAPTURE_STATUS_NONE);
    REQUIRE(nodes_of(graph) == 5 && calls == 0 && word(data) == 7);
    OK(cuGraphInstantiate(&exec, graph, 0));
    OK(cuGraphDestroy(graph));
    for (unsigned round = 1; round <= 3; round++) {
        /* The source is read when the node runs. */
        count_up(source, round * 100);
        OK(cuGraphLaunch(exec, stream));
        OK(cuStreamSynchronize(stream));
        REQUIRE(calls == (int)round && result[0] == 9);
        for (unsigned i = 1; i < WORDS; i++) REQUIRE(result[i] == (round * 100 + i) * 3 + 5);
    }
    OK(cuGraphExecDestroy(exec));
    OK(cuStreamDestroy(stream));
}

/* Two branches between a fork and a join. */
static void forked(void)
{
    CUgraph graph;
    CUgraphExec exec;
    CUstream main = new_stream(), side = new_stream();
    CUevent fork = new_event(), copied = new_event(), join = new_event();
    OK(cuStreamBeginCapture(main, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    OK(cuMemsetD32Async(data, 1, WORDS, main));
    OK(cuEventRecord(fork, main));
    OK(cuStreamWaitEvent(side, fork, 0));
    REQUIRE(status_of(side) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    OK(cuMemcpyDtoDAsync(other, data, WORDS * 4, side));
    OK(launch(side, other, 10));
    OK(launch(main, data, 2));
    OK(cuEventRecord(join, side));
    OK(cuStreamWaitEvent(main, join, 0));
    OK(cuMemcpyDtoDAsync(data, other, 4, main));
    EXPECT(CUDA_ERROR_CAPTURED_EVENT, cuEventQuery(join));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(main, &graph));
    REQUIRE(graph == NULL && status_of(side) == CU_STREAM_CAPTURE_STATUS_NONE);

    OK(cuStreamBeginCapture(main, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuMemsetD32Async(data, 1, WORDS, main));
    OK(cuEventRecord(fork, main));
    OK(cuStreamWaitEvent(side, fork, 0));
    OK(cuMemcpyDtoDAsync(other, data, WORDS * 4, side));
    OK(cuEventRecord(copied, side));
    OK(launch(side, other, 10));
    OK(cuStreamWaitEvent(main, copied, 0));
    OK(launch(main, data, 2));
    OK(cuEventRecord(join, side));
    OK(cuStreamWaitEvent(main, join, 0));
    OK(cuMemcpyDtoDAsync(data, other, 4, main));
    OK(cuStreamEndCapture(main, &graph));
    size_t roots, edges;
    OK(cuGraphGetRootNodes(graph, NULL, &roots));
    OK(cuGraphGetEdges(graph, NULL, NULL, NULL, &edges));
    REQUIRE(nodes_of(graph) == 5 && roots == 1 && edges == 6);
    OK(cuGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 3; i++) OK(cuGraphLaunch(exec, i % 2 ? side : main));
    OK(cuCtxSynchronize());
    REQUIRE(word(data) == 15 && word(data + 4) == 7 && word(other) == 15);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuStreamDestroy(main));
    OK(cuStreamDestroy(side));
    OK(cuEventDestroy(fork));
    OK(cuEventDestroy(join));
}

static CUcontext context;

/* A graph of nodes that the program adds, and what changes of it an executable sees. */
static void by_hand(void)
{
    CUgraph graph, child, clone;
    CUgraphExec exec;
    CUgraphNode fill, kernel, copy, inner, empty, found;
    unsigned factor = 4;
    void *parameters[] = {&data, &factor};
    CUDA_KERNEL_NODE_PARAMS launch_of = kernel_node(parameters);
    CUDA_MEMSET_NODE_PARAMS fill_of = {.dst = data, .elementSize = 4, .value = 2, .width = WORDS, .height = 1};
    CUDA_MEMCPY3D copy_of = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = data, .dstMemoryType =
                             CU_MEMORYTYPE_DEVICE, .dstDevice = other, .WidthInBytes = WORDS * 4, .Height = 1, .Depth = 1};
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphCreate(&child, 0));
    OK(cuGraphAddMemcpyNode(&inner, child, NULL, 0, &copy_of, context));
    OK(cuGraphAddMemsetNode(&fill, graph, NULL, 0, &fill_of, context));
    OK(cuGraphAddKernelNode(&kernel, graph, &fill, 1, &launch_of));
    OK(cuGraphAddChildGraphNode(&copy, graph, &kernel, 1, child));
    OK(cuGraphAddEmptyNode(&empty, graph, NULL, 0));
    OK(cuGraphDestroy(child));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphAddEmptyNode(&found, graph, &inner, 1));
    OK(cuGraphAddDependencies(graph, &copy, &empty, NULL, 1));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphAddDependencies(graph, &copy, &empty, NULL, 1));
    CUgraphNodeType type;
    OK(cuGraphNodeGetType(copy, &type));
    REQUIRE(type == CU_GRAPH_NODE_TYPE_GRAPH);
    OK(cuGraphInstantiate(&exec, graph, 0));
    OK(cuGraphLaunch(exec, NULL));
    REQUIRE(word(other) == 2 * 4 + 5);

    /* The executable keeps what it was made of. */
    fill_of.value = 20;
    OK(cuGraphMemsetNodeSetParams(fill, &fill_of));
    OK(cuGraphLaunch(exec, NULL));
    REQUIRE(word(other) == 2 * 4 + 5);
    OK(cuGraphExecMemsetNodeSetParams(exec, fill, &fill_of, context));
    OK(cuGraphLaunch(exec, NULL));
    REQUIRE(word(other) == 20 * 4 + 5);
    factor = 7;
    OK(cuGraphExecKernelNodeSetParams(exec, kernel, &launch_of));
    OK(cuGraphLaunch(exec, NULL));
    REQUIRE(word(other) == 20 * 7 + 5);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphExecMemsetNodeSetParams(exec, kernel, &fill_of, context));
    OK(cuGraphExecDestroy(exec));

    OK(cuGraphClone(&clone, graph));
    OK(cuGraphNodeFindInClone(&found, kernel, clone));
    OK(cuGraphDestroyNode(found));
    REQUIRE(nodes_of(clone) == 3 && nodes_of(graph) == 4);
    OK(cuGraphDestroy(clone));

    /* A cycle is found when the graph is instantiated. */
    OK(cuGraphAddDependencies(graph, &empty, &fill, NULL, 1));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiate(&exec, graph, 0));
    OK(cuGraphRemoveDependencies(graph, &empty, &fill, NULL, 1));
    OK(cuGraphInstantiate(&exec, graph, 0));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
}

/* A captured graph within a capture is a node, and events of the outside can be recorded and waited for. */
static void nested(void)
{
    CUgraph inner, outer;
    CUgraphExec exec, whole;
    CUstream stream = new_stream();
    CUevent event = new_event();
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(launch(stream, data, 2));
    OK(cuStreamEndCapture(stream, &inner));
    OK(cuGraphInstantiate(&exec, inner, 0));
    fill(data, 1, WORDS);
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuGraphLaunch(exec, stream));
    OK(cuEventRecordWithFlags(event, stream, CU_EVENT_RECORD_EXTERNAL));
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamEndCapture(stream, &outer));
    REQUIRE(nodes_of(outer) == 3 && word(data) == 1);
    OK(cuGraphInstantiate(&whole, outer, 0));
    OK(cuEventQuery(event));
    OK(cuGraphLaunch(whole, stream));
    OK(cuEventSynchronize(event));
    OK(cuStreamSynchronize(stream));
    REQUIRE(word(data) == (1 * 2 + 5) * 2 + 5);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphExecDestroy(whole));
    OK(cuGraphDestroy(inner));
    OK(cuGraphDestroy(outer));
    OK(cuEventDestroy(event));
    OK(cuStreamDestroy(stream));
}

/* Streams and events that were waited for can be destroyed before the capture ends. */
static void ended_early(void)
{
    CUgraph graph;
    CUgraphExec exec;
    CUstream main = new_stream();
    for (int joined = 0; joined < 2; joined++) {
        CUstream side = new_stream();
        CUevent fork = new_event(), join = new_event();
        OK(cuStreamBeginCapture(main, CU_STREAM_CAPTURE_MODE_GLOBAL));
        OK(cuMemsetD32Async(data, 1, WORDS, main));
        OK(cuEventRecord(fork, main));
        OK(cuStreamWaitEvent(side, fork, 0));
        OK(launch(side, data, 10));
        OK(cuEventRecord(join, side));
        if (joined) OK(cuStreamWaitEvent(main, join, 0));
        OK(cuStreamDestroy(side));
        OK(cuEventDestroy(fork));
        OK(cuEventDestroy(join));
        if (joined)
            OK(cuStreamEndCapture(main, &graph));
        else
            EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, cuStreamEndCapture(main, &graph));
    }
    OK(cuGraphInstantiate(&exec, graph, 0));
    OK(cuGraphLaunch(exec, main));
    OK(cuStreamSynchronize(main));
    REQUIRE(word(data) == 15);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuStreamDestroy(main));
}

/* Each mistake has its code, and a spoilt capture ends without a graph. */
static void mistakes(void)
{
    CUgraph graph;
    CUdeviceptr more;
    CUstream stream = new_stream(), side = new_stream(), blocking;
    CUevent event = new_event();
    OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamBeginCapture(CU_STREAM_LEGACY, CU_STREAM_CAPTURE_MODE_GLOBAL));
    EXPECT(CUDA_ERROR_ILLEGAL_STATE, cuStreamEndCapture(stream, &graph));

    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    EXPECT(CUDA_ERROR_ILLEGAL_STATE, cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuMemAlloc(&more, 64));
    REQUIRE(status_of(stream) == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, launch(stream, data, 1));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &graph));

    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    REQUIRE(mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
    OK(cuMemAlloc(&more, 64));
    OK(cuMemFree(more));
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    OK(cuStreamEndCapture(stream, &graph));
    REQUIRE(nodes_of(graph) == 0);
    OK(cuGraphDestroy(graph));

    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamSynchronize(stream));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &graph));

    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, cuStreamWaitEvent(stream, event, 0));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &graph));

    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuEventRecord(event, stream));
    OK(cuStreamWaitEvent(side, event, 0));
    OK(launch(side, data, 1));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, cuStreamEndCapture(stream, &graph));
    REQUIRE(status_of(side) == CU_STREAM_CAPTURE_STATUS_NONE);

    OK(cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuMemsetD32Async(data, 0, 1, NULL));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(blocking, &graph));
    OK(cuStreamDestroy(stream));
    OK(cuStreamDestroy(side));
    OK(cuStreamDestroy(blocking));
    OK(cuEventDestroy(event));
}

int main(void)
{
    CUmodule module;
    context = start();
    OK(cuModuleLoadData(&module, scale_ptx));
    OK(cuModuleGetFunction(&scale, module, "scale"));
    OK(cuMemAlloc(&data, WORDS * 4));
    OK(cuMemAlloc(&other, WORDS * 4));
    captured();
    forked();
    by_hand();
    nested();
    ended_early();
    mistakes();
    return passed();
}
