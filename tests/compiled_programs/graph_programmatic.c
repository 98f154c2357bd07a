/* Edges that do not wait until a kernel is complete: captured from launches, added by hand, asked for, and kept. */
#include "graph.h"

static CUfunction scale, nothing;
static CUdeviceptr data;

static CUresult launch(CUstream stream, unsigned factor, const CUlaunchAttribute *attribute)
{
    void *parameters[] = {&data, &factor};
    CUlaunchConfig config = {.gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = WORDS, .blockDimY = 1,
                             .blockDimZ = 1, .hStream = stream, .attrs = (CUlaunchAttribute *)attribute,
                             .numAttrs = attribute ? 1 : 0};
    return cuLaunchKernelEx(&config, scale, parameters, NULL);
}

static CUlaunchAttribute triggers(CUevent event, int at_block_start)
{
    CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT};
    attribute.value.programmaticEvent.event = event;
    attribute.value.programmaticEvent.triggerAtBlockStart = at_block_start;
    return attribute;
}

static CUlaunchAttribute begins(CUevent event)
{
    CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT};
    attribute.value.launchCompletionEvent.event = event;
    return attribute;
}

static CUlaunchAttribute follows(void)
{
    CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION};
    attribute.value.programmaticStreamSerializationAllowed = 1;
    return attribute;
}

static int is(CUgraphEdgeData edge, unsigned port, unsigned type)
{
    return edge.from_port == port && edge.type == type && edge.to_port == 0;
}

static void launch_graph(CUgraph graph, CUstream stream, unsigned before, unsigned after)
{
    CUgraphExec exec;
    OK(cuGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 3; i++) {
        fill(data, before, WORDS);
        OK(cuGraphLaunch(exec, stream));
        OK(cuStreamSynchronize(stream));
        REQUIRE(word(data) == after);
    }
    OK(cuGraphExecDestroy(exec));
}

/* An event that a captured launch records is an edge from it, of the kind that the attribute names. */
static void recorded(CUlaunchAttribute (*attribute)(CUevent, int), int at_block_start, unsigned port, unsigned type)
{
    CUgraph graph;
    CUgraphNode nodes[4], from[4], to[4];
    CUgraphEdgeData edges[4];
    CUstreamCaptureStatus status;
    const CUgraphNode *waits;
    const CUgraphEdgeData *kinds;
    CUgraph captured;
    cuuint64_t id;
    size_t count = 4, waited;
    CUstream main = new_stream(), side = new_stream();
    CUevent event = new_event(), join = new_event();
    CUlaunchAttribute recording = attribute(event, at_block_start);
    OK(cuStreamBeginCapture(main, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(launch(main, 2, &recording));
    OK(cuStreamWaitEvent(side, event, 0));
    OK(cuStreamGetCaptureInfo(side, &status, &id, &captured, &waits, &kinds, &waited));
    REQUIRE(status == CU_STREAM_CAPTURE_STATUS_ACTIVE && waited == 1 && is(kinds[0], port, type));
    EXPECT(CUDA_ERROR_LOSSY_QUERY, cuStreamGetCaptureInfo(side, &status, &id, &captured, &waits, NULL, &waited));
    OK(launch(side, 3, NULL));
    OK(cuEventRecord(join, side));
    OK(cuStreamWaitEvent(main, join, 0));
    OK(launch(main, 4, NULL));
    OK(cuStreamEndCapture(main, &graph));
    OK(cuGraphGetNodes(graph, nodes, &count));
    REQUIRE(count == 3);
    count = 4;
    EXPECT(CUDA_ERROR_LOSSY_QUERY, cuGraphGetEdges(graph, from, to, NULL, &count));
    OK(cuGraphGetEdges(graph, from, to, edges, &count));
    REQUIRE(count == 3);
    for (unsigned i = 0; i < count; i++) {
        int programmatic = from[i] == nodes[0] && to[i] == nodes[1];
        REQUIRE(is(edges[i], programmatic ? port : 0, programmatic ? type : 0));
    }
    launch_graph(graph, main, 1, ((1 * 2 + 5) * 3 + 5) * 4 + 5);

    /* The event is the capture's until a launch of a stream that works records it. */
    EXPECT(CUDA_ERROR_CAPTURED_EVENT, cuEventQuery(event));
    OK(launch(main, 1, &recording));
    OK(cuEventSynchronize(event));
    OK(cuEventQuery(event));
    OK(cuStreamSynchronize(main));
    OK(cuGraphDestroy(graph));
    OK(cuStreamDestroy(main));
    OK(cuStreamDestroy(side));
    OK(cuEventDestroy(event));
    OK(cuEventDestroy(join));
}

static CUlaunchAttribute begins_of(CUevent event, int unused)
{
    (void)unused;
    return begins(event);
}

/* Who waits for a part of a kernel has not joined it. */
static void unjoined(void)
{
    CUgraph graph;
    CUstream main = new_stream(), side = new_stream();
    CUevent fork = new_event(), part = new_event(), whole = new_event();
    CUlaunchAttribute partly = triggers(part, 0);
    for (int joined = 0; joined < 2; joined++) {
        OK(cuStreamBeginCapture(main, CU_STREAM_CAPTURE_MODE_RELAXED));
        OK(cuEventRecord(fork, main));
        OK(cuStreamWaitEvent(side, fork, 0));
        OK(launch(side, 2, &partly));
        OK(cuEventRecord(whole, side));
        OK(cuStreamWaitEvent(main, joined ? whole : part, 0));
        OK(launch(main, 3, NULL));
        if (joined) {
            OK(cuStreamEndCapture(main, &graph));
            OK(cuGraphDestroy(graph));
        } else {
            EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, cuStreamEndCapture(main, &graph));
        }
    }
    /* An event of another context is none of the capture's. */
    CUcontext own, other;
    OK(cuCtxGetCurrent(&own));
    OK(cuCtxCreate(&other, NULL, 0, 0));
    CUlaunchAttribute foreign = triggers(new_event(), 0);
    OK(cuCtxSetCurrent(own));
    OK(cuStreamBeginCapture(main, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, launch(main, 2, &foreign));
    OK(cuStreamEndCapture(main, &graph));
    size_t count;
    OK(cuGraphGetNodes(graph, NULL, &count));
    REQUIRE(count == 0);
    OK(cuGraphDestroy(graph));
    OK(cuCtxDestroy(other));
    OK(cuStreamDestroy(main));
    OK(cuStreamDestroy(side));
    OK(cuEventDestroy(fork));
    OK(cuEventDestroy(part));
    OK(cuEventDestroy(whole));
}

/* A launch that may overlap the kernel before it; behind anything else it waits as ever. */
static void serialized(void)
{
    CUgraph graph;
    CUgraphNode from[4], to[4];
    CUgraphEdgeData edges[4];
    size_t count = 4;
    CUstream stream = new_stream();
    CUlaunchAttribute overlaps = follows();
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(launch(stream, 2, &overlaps));
    OK(launch(stream, 3, &overlaps));
    OK(cuMemsetD32Async(data, 7, WORDS, stream));
    OK(launch(stream, 4, &overlaps));
    OK(launch(stream, 5, NULL));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphGetEdges(graph, from, to, edges, &count));
    REQUIRE(count == 4);
    REQUIRE(is(edges[0], CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC, CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC));
    for (int i = 1; i < 4; i++) REQUIRE(is(edges[i], 0, 0));
    launch_graph(graph, stream, 1, (7 * 4 + 5) * 5 + 5);
    OK(cuGraphDestroy(graph));
    OK(cuStreamDestroy(stream));
}

/* Edges that the program adds are checked, told, removed as they were given, and kept by clones. */
static void by_hand(CUcontext context)
{
    CUgraph graph, clone;
    CUgraphNode first, second, third, fill, found, waits[4], waiting[4];
    CUgraphEdgeData edges[4], programmatic = {.from_port = CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC,
                                              .type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC};
    CUgraphEdgeData ordered = {.from_port = CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER};
    unsigned factor = 2;
    void *parameters[] = {&data, &factor};
    CUgraphNodeParams kernel = {.type = CU_GRAPH_NODE_TYPE_KERNEL, .kernel = {.func = scale, .gridDimX = 1, .gridDimY
                                = 1, .gridDimZ = 1, .blockDimX = WORDS, .blockDimY = 1, .blockDimZ = 1, .kernelParams
                                = parameters}};
    CUgraphNodeParams empty = {.type = CU_GRAPH_NODE_TYPE_KERNEL, .kernel = {.func = nothing, .gridDimX = 1, .gridDimY
                               = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1}};
    CUDA_MEMSET_NODE_PARAMS filled = {.dst = data, .elementSize = 4, .value = 9, .width = WORDS, .height = 1};
    size_t count = 4;
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddNode(&first, graph, NULL, NULL, 0, &kernel));
    OK(cuGraphAddNode(&second, graph, &first, &programmatic, 1, &kernel));
    OK(cuGraphAddNode(&third, graph, &first, &ordered, 1, &empty));
    OK(cuGraphAddDependencies(graph, &second, &third, &programmatic, 1));
    OK(cuGraphNodeGetDependencies(third, waits, edges, &count));
    REQUIRE(count == 2 && waits[0] == first && waits[1] == second);
    REQUIRE(is(edges[0], CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER, CU_GRAPH_DEPENDENCY_TYPE_DEFAULT));
    REQUIRE(is(edges[1], CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC, CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC));
    count = 4;
    EXPECT(CUDA_ERROR_LOSSY_QUERY, cuGraphNodeGetDependentNodes(first, waiting, NULL, &count));
    OK(cuGraphNodeGetDependentNodes(first, waiting, edges, &count));
    REQUIRE(count == 2 && waiting[0] == second && edges[0].type == CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC);

    OK(cuGraphAddMemsetNode(&fill, graph, NULL, 0, &filled, context));
    CUgraphEdgeData wrong[] = {{.from_port = 1}, {.type = 1}, {.from_port = 3, .type = 1}, {.to_port = 1},
                               {.from_port = 1, .type = 2}, {.reserved = {0, 0, 0, 0, 1}}};
    for (unsigned i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphAddDependencies(graph, &fill, &first, &wrong[i], 1));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphAddDependencies(graph, &first, &fill, &wrong[i], 1));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphAddNode(&found, graph, &first, &wrong[i], 1, &kernel));
    }
    /* Only kernels have ports, and only kernels are at either end of a programmatic edge. */
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphAddDependencies(graph, &fill, &first, &ordered, 1));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphAddDependencies(graph, &first, &fill, &programmatic, 1));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphRemoveDependencies(graph, &first, &second, NULL, 1));
    OK(cuGraphAddDependencies(graph, &fill, &first, NULL, 1));

    OK(cuGraphClone(&clone, graph));
    OK(cuGraphNodeFindInClone(&found, second, clone));
    count = 4;
    OK(cuGraphNodeGetDependencies(found, waits, edges, &count));
    REQUIRE(count == 1 && is(edges[0], CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC, CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC));
    CUstream stream = new_stream();
    launch_graph(clone, stream, 0, (9 * 2 + 5) * 2 + 5);
    launch_graph(graph, stream, 0, (9 * 2 + 5) * 2 + 5);

    /* An executable has the edges that it was made with: a graph with others does not fit. */
    CUgraphExec exec;
    CUgraphExecUpdateResultInfo info;
    OK(cuGraphInstantiate(&exec, graph, 0));
    OK(cuGraphExecUpdate(exec, clone, &info));
    OK(cuGraphRemoveDependencies(graph, &first, &second, &programmatic, 1));
    OK(cuGraphAddDependencies(graph, &first, &second, NULL, 1));
    EXPECT(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate(exec, graph, &info));
    REQUIRE(info.result == CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED && info.errorNode == second);
    REQUIRE(info.errorFromNode == first);

    /* A kernel that is switched off triggers nothing, and is waited for. */
    OK(cuGraphNodeSetEnabled(exec, first, 0));
    for (int i = 0; i < 3; i++) {
        OK(cuGraphLaunch(exec, stream));
        OK(cuStreamSynchronize(stream));
        REQUIRE(word(data) == 9 * 2 + 5);
    }
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(clone));
    OK(cuGraphDestroy(graph));
    OK(cuStreamDestroy(stream));
}

int main(void)
{
    CUmodule module;
    CUcontext context = start();
    OK(cuModuleLoadData(&module, scale_ptx));
    OK(cuModuleGetFunction(&scale, module, "scale"));
    OK(cuModuleGetFunction(&nothing, module, "nothing"));
    OK(cuMemAlloc(&data, WORDS * 4));
    recorded(triggers, 0, CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC, CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC);
    recorded(triggers, 1, CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER, CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC);
    recorded(begins_of, 0, CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER, CU_GRAPH_DEPENDENCY_TYPE_DEFAULT);
    unjoined();
    serialized();
    by_hand(context);
    return passed();
}
