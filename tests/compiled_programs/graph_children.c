/* Graphs inside graphs: their nodes are changed in the executable of the whole, however they came to be inside. */
#include "graph.h"

static CUfunction scale;
static CUdeviceptr data, other;
static CUcontext context;

static CUgraph new_graph(void)
{
    CUgraph graph;
    OK(cuGraphCreate(&graph, 0));
    return graph;
}

static CUgraphExec instantiated(CUgraph graph)
{
    CUgraphExec exec;
    OK(cuGraphInstantiate(&exec, graph, 0));
    return exec;
}

static CUgraphNodeParams fill_of(CUdeviceptr where, unsigned value)
{
    return (CUgraphNodeParams){.type = CU_GRAPH_NODE_TYPE_MEMSET, .memset = {.dst = where, .elementSize = 4, .value =
                               value, .width = WORDS, .height = 1, .ctx = context}};
}

static CUgraphNodeParams kernel_of(void **parameters)
{
    return (CUgraphNodeParams){.type = CU_GRAPH_NODE_TYPE_KERNEL, .kernel = {.func = scale, .gridDimX = 1, .gridDimY = 1,
                               .gridDimZ = 1, .blockDimX = WORDS, .blockDimY = 1, .blockDimZ = 1, .kernelParams =
                               parameters}};
}

static CUgraphNodeParams child_of(CUgraph child, CUgraphChildGraphNodeOwnership ownership)
{
    return (CUgraphNodeParams){.type = CU_GRAPH_NODE_TYPE_GRAPH, .graph = {.graph = child, .ownership = ownership}};
}

static CUDA_MEMCPY3D copy_of(CUdeviceptr to, CUdeviceptr from)
{
    return (CUDA_MEMCPY3D){.dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = to, .srcMemoryType =
                           CU_MEMORYTYPE_DEVICE, .srcDevice = from, .WidthInBytes = WORDS * 4, .Height = 1, .Depth = 1};
}

static CUgraphNode added(CUgraph graph, CUgraphNode *after, CUgraphNodeParams params)
{
    CUgraphNode node;
    OK(cuGraphAddNode(&node, graph, after, NULL, after != NULL, &params));
    return node;
}

/* A graph that fills data and scales it. */
struct pair {
    CUgraph graph;
    CUgraphNode fill, kernel;
};

static struct pair pair_of(unsigned value, unsigned factor)
{
    void *parameters[] = {&data, &factor};
    struct pair pair = {.graph = new_graph()};
    pair.fill = added(pair.graph, NULL, fill_of(data, value));
    pair.kernel = added(pair.graph, &pair.fill, kernel_of(parameters));
    return pair;
}

/* The node of the graph inside a child graph node that was cloned from another. */
static CUgraphNode inside(CUgraphNode child, CUgraphNode original)
{
    CUgraph graph;
    CUgraphNode node;
    OK(cuGraphChildGraphNodeGetGraph(child, &graph));
    OK(cuGraphNodeFindInClone(&node, original, graph));
    return node;
}

static void require_after_launch(CUgraphExec exec, CUdeviceptr where, unsigned value)
{
    /* A launch right behind a change takes another way than the ones after it. */
    for (int i = 0; i < 3; i++) {
        fill(where, 1000, WORDS);
        OK(cuGraphLaunch(exec, NULL));
        REQUIRE(word(where) == value);
    }
}

/* Nodes of a graph that was cloned into its parent, or moved, at depth 1 or 2. */
static void changed_inside(CUgraphChildGraphNodeOwnership ownership, int depth)
{
    struct pair pair = pair_of(3, 2);
    CUgraphNode fill = pair.fill, kernel = pair.kernel;
    CUgraph graph = pair.graph, all[3] = {graph};
    for (int i = 1; i <= depth; i++) {
        all[i] = new_graph();
        CUgraphNode node = added(all[i], NULL, child_of(graph, ownership));
        if (ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE && i == 1)
            fill = inside(node, fill), kernel = inside(node, kernel);
        else if (ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE) {
            CUgraph middle;
            CUgraphNode within;
            size_t one = 1;
            OK(cuGraphChildGraphNodeGetGraph(node, &middle));
            OK(cuGraphGetNodes(middle, &within, &one));
            fill = inside(within, fill), kernel = inside(within, kernel);
        }
        graph = all[i];
    }
    CUgraphExec exec = instantiated(graph), twin = instantiated(graph);
    require_after_launch(exec, data, 3 * 2 + 5);

    CUgraphNodeParams filled = fill_of(data, 10);
    OK(cuGraphExecNodeSetParams(exec, fill, &filled));
    require_after_launch(exec, data, 10 * 2 + 5);
    filled.memset.value = 11;
    OK(cuGraphExecMemsetNodeSetParams(exec, fill, (CUDA_MEMSET_NODE_PARAMS *)&filled.memset, context));
    unsigned factor = 4, enabled = 2;
    void *parameters[] = {&data, &factor};
    CUgraphNodeParams launched = kernel_of(parameters);
    OK(cuGraphExecNodeSetParams(exec, kernel, &launched));
    require_after_launch(exec, data, 11 * 4 + 5);
    factor = 6;
    CUDA_KERNEL_NODE_PARAMS as_kernel = {.func = scale, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = WORDS,
                                         .blockDimY = 1, .blockDimZ = 1, .kernelParams = parameters};
    OK(cuGraphExecKernelNodeSetParams(exec, kernel, &as_kernel));
    require_after_launch(exec, data, 11 * 6 + 5);
    /* Neither the graph nor another executable of it has changed. */
    require_after_launch(twin, data, 3 * 2 + 5);
    CUDA_MEMSET_NODE_PARAMS told;
    OK(cuGraphMemsetNodeGetParams(fill, &told));
    REQUIRE(told.value == 3);

    OK(cuGraphNodeGetEnabled(exec, kernel, &enabled));
    REQUIRE(enabled == 1);
    OK(cuGraphNodeSetEnabled(exec, kernel, 0));
    OK(cuGraphNodeGetEnabled(exec, kernel, &enabled));
    REQUIRE(enabled == 0);
    require_after_launch(exec, data, 11);
    OK(cuGraphNodeSetEnabled(exec, kernel, 1));
    require_after_launch(exec, data, 11 * 6 + 5);

    /* A node stays of its kind, and one of another graph is not found. */
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphExecNodeSetParams(exec, fill, &launched));
    struct pair stranger = pair_of(1, 1);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphExecNodeSetParams(exec, stranger.fill, &filled));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphNodeSetEnabled(exec, stranger.fill, 0));
    if (ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE)
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphExecNodeSetParams(exec, pair.fill, &filled));
    require_after_launch(exec, data, 11 * 6 + 5);

    OK(cuGraphExecDestroy(exec));
    OK(cuGraphExecDestroy(twin));
    OK(cuGraphDestroy(stranger.graph));
    OK(cuGraphDestroy(graph));
    for (int i = 0; i < depth; i++)
        if (ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE) OK(cuGraphDestroy(all[i]));
        else EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(all[i]));
}

static void CUDA_CB count(void *number) { ++*(volatile int *)number; }

/* The other kinds of nodes: copies, host functions, events. */
static void other_kinds(void)
{
    int calls = 0, other_calls = 0;
    CUgraph child = new_graph(), graph = new_graph();
    CUDA_MEMCPY3D copied = copy_of(other, data);
    CUDA_HOST_NODE_PARAMS calling = {count, &calls};
    CUgraphNode copy, host, record, wait, node;
    CUevent first = new_event(), second = new_event();
    OK(cuGraphAddMemcpyNode(&copy, child, NULL, 0, &copied, context));
    OK(cuGraphAddHostNode(&host, child, &copy, 1, &calling));
    OK(cuGraphAddEventWaitNode(&wait, child, &host, 1, second));
    OK(cuGraphAddEventRecordNode(&record, child, &wait, 1, first));
    node = added(graph, NULL, child_of(child, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE));
    CUgraphExec exec = instantiated(graph);
    unsigned words[WORDS];
    count_up(words, 50);
    OK(cuMemcpyHtoD(data, words, sizeof words));
    require_after_launch(exec, other, 50);
    REQUIRE(calls == 3);
    copied = copy_of(other, data + 4);
    copied.WidthInBytes -= 4;
    OK(cuGraphExecMemcpyNodeSetParams(exec, copy, &copied, context));
    calling.userData = &other_calls;
    OK(cuGraphExecHostNodeSetParams(exec, host, &calling));
    require_after_launch(exec, other, 51);
    REQUIRE(calls == 3 && other_calls == 3);
    /* The event that is recorded from now on is the second one. */
    CUstream stream = new_stream();
    OK(cuGraphExecEventRecordNodeSetEvent(exec, record, second));
    OK(cuGraphExecEventWaitNodeSetEvent(exec, wait, first));
    OK(cuGraphLaunch(exec, stream));
    OK(cuEventSynchronize(second));
    REQUIRE(other_calls == 4);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphExecHostNodeSetParams(exec, node, &calling));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphNodeSetEnabled(exec, host, 0));
    OK(cuStreamSynchronize(stream));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuStreamDestroy(stream));
    OK(cuEventDestroy(first));
    OK(cuEventDestroy(second));
}

/* The graph of a child graph node changes as a whole: if another one is like it, at each depth. */
static void changed_as_a_whole(void)
{
    CUgraph middle = new_graph(), graph = new_graph();
    struct pair pair = pair_of(3, 2), next = pair_of(20, 3), third = pair_of(30, 1);
    CUgraphNode deep = added(middle, NULL, child_of(pair.graph, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE));
    CUgraphNode node = added(graph, NULL, child_of(middle, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE));
    CUgraphExec exec = instantiated(graph);
    CUgraphNodeParams params = child_of(next.graph, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE);
    OK(cuGraphExecNodeSetParams(exec, deep, &params));
    require_after_launch(exec, data, 20 * 3 + 5);
    OK(cuGraphExecChildGraphNodeSetParams(exec, deep, third.graph));
    require_after_launch(exec, data, 30 + 5);
    /* The whole of the middle one, with what is within it: its own graph holds what it was made with. */
    params = child_of(middle, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE);
    OK(cuGraphExecNodeSetParams(exec, node, &params));
    require_after_launch(exec, data, 3 * 2 + 5);
    CUgraphNodeParams filled = fill_of(data, 8);
    OK(cuGraphNodeSetParams(inside(deep, pair.fill), &filled));
    require_after_launch(exec, data, 3 * 2 + 5);
    OK(cuGraphExecChildGraphNodeSetParams(exec, node, middle));
    require_after_launch(exec, data, 8 * 2 + 5);

    /* Of another topology: nothing changes. */
    CUgraphNode more = added(next.graph, &next.kernel, fill_of(data, 1));
    params = child_of(next.graph, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphExecNodeSetParams(exec, deep, &params));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphExecChildGraphNodeSetParams(exec, deep, next.graph));
    OK(cuGraphDestroyNode(more));
    OK(cuGraphRemoveDependencies(next.graph, &next.fill, &next.kernel, NULL, 1));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphExecNodeSetParams(exec, deep, &params));
    params = child_of((CUgraph)exec, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphExecNodeSetParams(exec, deep, &params));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphExecNodeSetParams(exec, deep, &filled));
    require_after_launch(exec, data, 8 * 2 + 5);

    /* The graph's own node may be given any graph; executables made before keep theirs. */
    params = child_of(third.graph, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE);
    OK(cuGraphNodeSetParams(node, &params));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(third.graph));
    CUgraphExec later = instantiated(graph);
    require_after_launch(later, data, 30 + 5);
    require_after_launch(exec, data, 8 * 2 + 5);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphExecDestroy(later));
    OK(cuGraphDestroy(graph));
    OK(cuGraphDestroy(next.graph));
    OK(cuGraphDestroy(pair.graph));
}

/* An executable takes over a graph with others inside it, and names the node that does not fit. */
static void updated(void)
{
    CUgraphExecUpdateResultInfo info;
    CUgraph graphs[2];
    CUgraphNode outer[2];
    for (unsigned i = 0; i < 2; i++) {
        struct pair pair = pair_of(3 + i, 2 + i);
        CUgraph middle = new_graph();
        added(middle, NULL, child_of(pair.graph, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE));
        graphs[i] = new_graph();
        outer[i] = added(graphs[i], NULL, child_of(middle, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE));
    }
    CUgraphExec exec = instantiated(graphs[0]);
    require_after_launch(exec, data, 3 * 2 + 5);
    OK(cuGraphExecUpdate(exec, graphs[1], &info));
    REQUIRE(info.result == CU_GRAPH_EXEC_UPDATE_SUCCESS);
    require_after_launch(exec, data, 4 * 3 + 5);
    CUgraph middle;
    OK(cuGraphChildGraphNodeGetGraph(outer[0], &middle));
    CUgraphNode more = added(middle, NULL, fill_of(other, 1));
    EXPECT(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate(exec, graphs[0], &info));
    REQUIRE(info.result == CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
    require_after_launch(exec, data, 4 * 3 + 5);
    OK(cuGraphDestroyNode(more));
    OK(cuGraphExecUpdate(exec, graphs[0], &info));
    require_after_launch(exec, data, 3 * 2 + 5);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graphs[0]));
    OK(cuGraphDestroy(graphs[1]));
}

/* What the documentation forbids with a graph that is a node's. */
static void owned(void)
{
    struct pair pair = pair_of(3, 2), alone = pair_of(1, 1);
    CUgraph graph = new_graph(), another = new_graph();
    CUgraphNodeParams moving = child_of(pair.graph, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE), told;
    CUgraphNode node, none;
    CUgraphExec exec, refused;
    CUgraphExecUpdateResultInfo info;
    OK(cuGraphAddNode(&node, graph, NULL, NULL, 0, &moving));
    OK(cuGraphNodeGetParams(node, &told));
    REQUIRE(told.type == CU_GRAPH_NODE_TYPE_GRAPH && told.graph.graph == pair.graph);
    REQUIRE(told.graph.ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_INVALID);
    exec = instantiated(graph);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiate(&refused, pair.graph, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(pair.graph));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphExecUpdate(exec, pair.graph, &info));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphAddNode(&none, another, NULL, NULL, 0, &moving));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphAddChildGraphNode(&none, another, NULL, 0, pair.graph));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphAddNode(&none, graph, NULL, NULL, 0, &moving));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphAddNode(&none, another, NULL, NULL, 0, &told));
    moving.graph.graph = another;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphAddNode(&none, another, NULL, NULL, 0, &moving));
    moving.graph.graph = graph;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphAddNode(&none, pair.graph, NULL, NULL, 0, &moving));
    CUDA_MEM_ALLOC_NODE_PARAMS wanted = {.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location =
                                         {CU_MEM_LOCATION_TYPE_DEVICE, 0}}, .bytesize = 4096};
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, cuGraphAddMemAllocNode(&none, pair.graph, NULL, 0, &wanted));
    /* Other nodes may still be added; the next executable does them. */
    added(pair.graph, &pair.kernel, fill_of(other, 77));
    require_after_launch(exec, data, 3 * 2 + 5);
    CUgraphExec later = instantiated(graph);
    require_after_launch(later, other, 77);
    require_after_launch(exec, data, 3 * 2 + 5);
    OK(cuGraphExecDestroy(later));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphGetNodes(pair.graph, NULL, &(size_t){0}));
    OK(cuGraphDestroy(another));
    OK(cuGraphDestroy(alone.graph));
}

/* A captured launch of an executable is a child as it was then; a later change of the executable is not of it. */
static void captured_launch(void)
{
    struct pair pair = pair_of(3, 2);
    CUgraphExec exec = instantiated(pair.graph);
    CUstream stream = new_stream();
    CUgraph graph;
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamEndCapture(stream, &graph));
    CUgraphNodeParams filled = fill_of(data, 100);
    OK(cuGraphExecNodeSetParams(exec, pair.fill, &filled));
    CUgraphExec outer = instantiated(graph);
    require_after_launch(outer, data, 3 * 2 + 5);
    require_after_launch(exec, data, 100 * 2 + 5);
    CUgraphNode node, nodes[2];
    size_t one = 1, two = 2;
    CUgraph child;
    OK(cuGraphGetNodes(graph, &node, &one));
    OK(cuGraphChildGraphNodeGetGraph(node, &child));
    OK(cuGraphGetNodes(child, nodes, &two));
    filled.memset.value = 7;
    OK(cuGraphExecNodeSetParams(outer, nodes[0], &filled));
    require_after_launch(outer, data, 7 * 2 + 5);
    require_after_launch(exec, data, 100 * 2 + 5);
    OK(cuGraphExecDestroy(outer));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuGraphDestroy(pair.graph));
    OK(cuStreamDestroy(stream));
}

/* A node in what a conditional node chooses from. */
static void chosen(void)
{
    CUgraph graph = new_graph();
    CUgraphConditionalHandle condition;
    OK(cuGraphConditionalHandleCreate(&condition, graph, context, 1, CU_GRAPH_COND_ASSIGN_DEFAULT));
    CUgraphNodeParams choice = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL, .conditional = {.handle = condition, .type =
                                CU_GRAPH_COND_TYPE_IF, .size = 1, .ctx = context}};
    CUgraphNode node;
    OK(cuGraphAddNode(&node, graph, NULL, NULL, 0, &choice));
    CUgraphNode fill = added(choice.conditional.phGraph_out[0], NULL, fill_of(data, 41));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(choice.conditional.phGraph_out[0]));
    CUgraphExec exec = instantiated(graph);
    require_after_launch(exec, data, 41);
    CUgraphNodeParams filled = fill_of(data, 42);
    OK(cuGraphExecNodeSetParams(exec, fill, &filled));
    require_after_launch(exec, data, 42);
    OK(cuGraphNodeSetEnabled(exec, fill, 0));
    require_after_launch(exec, data, 1000);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
}

/* A side stream is destroyed before the first stream has waited for it; the program has it wait by naming nodes. */
static void side_stream(int joins, CUresult ends)
{
    CUstream stream = new_stream(), side = new_stream();
    CUevent event = new_event();
    CUgraph graph, told;
    CUgraphNode nodes[8];
    size_t count = 8;
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuEventRecord(event, stream));
    OK(cuStreamWaitEvent(side, event, 0));
    OK(cuMemsetD32Async(data, 7, WORDS, side));
    OK(cuMemcpyDtoDAsync(other, data, WORDS * 4, side));
    OK(cuStreamDestroy(side));
    OK(cuMemsetD32Async(data + WORDS * 4, 9, 1, stream));
    CUstreamCaptureStatus status;
    OK(cuStreamGetCaptureInfo(stream, &status, NULL, &told, NULL, NULL, NULL));
    REQUIRE(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    OK(cuGraphGetNodes(told, nodes, &count));
    REQUIRE(count == 3);
    CUgraphNode leaves[8];
    size_t leaf_count = 0;
    for (size_t i = 0; i < count; i++) {
        size_t followers = 0;
        OK(cuGraphNodeGetDependentNodes(nodes[i], NULL, NULL, &followers));
        if (!followers) leaves[leaf_count++] = nodes[i];
    }
    REQUIRE(leaf_count == 2);
    if (joins) {
        OK(cuStreamUpdateCaptureDependencies(stream, leaves, NULL, leaf_count, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
        /* What is captured now waits for both. */
        OK(cuMemcpyDtoDAsync(data + WORDS * 4 + 4, other, 4, stream));
    }
    EXPECT(ends, cuStreamEndCapture(stream, &graph));
    OK(cuStreamIsCapturing(stream, &status));
    REQUIRE(status == CU_STREAM_CAPTURE_STATUS_NONE);
    if (!ends) {
        CUgraphExec exec = instantiated(graph);
        for (int i = 0; i < 3; i++) {
            fill(other, 1, WORDS);
            fill(data + WORDS * 4, 1, 2);
            OK(cuGraphLaunch(exec, stream));
            OK(cuStreamSynchronize(stream));
            REQUIRE(word(other) == 7 && word(data + WORDS * 4) == 9 && word(data + WORDS * 4 + 4) == 7);
        }
        OK(cuGraphExecDestroy(exec));
        OK(cuGraphDestroy(graph));
    }
    OK(cuEventDestroy(event));
    OK(cuStreamDestroy(stream));
}

int main(void)
{
    CUmodule module;
    context = start();
    OK(cuModuleLoadData(&module, scale_ptx));
    OK(cuModuleGetFunction(&scale, module, "scale"));
    OK(cuMemAlloc(&data, 2 * WORDS * 4));
    OK(cuMemAlloc(&other, WORDS * 4));
    for (int depth = 1; depth <= 2; depth++) {
        changed_inside(CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE, depth);
        changed_inside(CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE, depth);
    }
    other_kinds();
    changed_as_a_whole();
    updated();
    owned();
    captured_launch();
    chosen();
    side_stream(1, CUDA_SUCCESS);
    side_stream(0, CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    return passed();
}
