/* Memory that graphs allocate: a node has an address, and an executable graph has the memory. */
#include "graph.h"

static CUcontext context;

static size_t room(void)
{
    size_t left, all;
    OK(cuMemGetInfo(&left, &all));
    return left;
}

static cuuint64_t told(CUgraphMem_attribute which)
{
    cuuint64_t value = ~0ull;
    OK(cuDeviceGetGraphMemAttribute(0, which, &value));
    return value;
}

/* Adds memory of a size to a graph, whose first words are filled with a value: the node that fills it. */
static CUgraphNode filled(CUgraph graph, size_t size, unsigned value, CUdeviceptr *memory)
{
    CUgraphNode node, fill;
    CUDA_MEM_ALLOC_NODE_PARAMS wanted = {.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location =
                                         {CU_MEM_LOCATION_TYPE_DEVICE, 0}}, .bytesize = size};
    OK(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &wanted));
    *memory = wanted.dptr;
    CUDA_MEMSET_NODE_PARAMS first = {.dst = *memory, .elementSize = 4, .value = value, .width = WORDS, .height = 1};
    OK(cuGraphAddMemsetNode(&fill, graph, &node, 1, &first, context));
    return fill;
}

static void require_nothing_left(size_t before)
{
    OK(cuDeviceGraphMemTrim(0));
    REQUIRE(told(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) == 0);
    REQUIRE(told(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) == 0);
    REQUIRE(room() == before);
}

/* Who makes a node takes addresses; who instantiates the graph takes memory, and has it until all is freed. */
static void charged(size_t size)
{
    CUgraph graph;
    CUgraphExec exec, second;
    CUdeviceptr memory;
    size_t before = room();
    cuuint64_t zero = 0;
    OK(cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &zero));
    OK(cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH, &zero));
    OK(cuGraphCreate(&graph, 0));
    filled(graph, size, 7, &memory);
    require_nothing_left(before);
    REQUIRE(told(CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) == 0);

    OK(cuGraphInstantiate(&exec, graph, 0));
    REQUIRE(room() <= before - size);
    REQUIRE(told(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) >= size && told(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) == 0);
    OK(cuGraphExecDestroy(exec));
    require_nothing_left(before);
    REQUIRE(told(CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) >= size && told(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH) == 0);

    /* Another executable has the memory at the same address. */
    OK(cuGraphInstantiate(&second, graph, 0));
    OK(cuGraphLaunch(second, NULL));
    REQUIRE(word(memory) == 7);
    REQUIRE(told(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) >= size && told(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH) >= size);
    OK(cuDeviceGraphMemTrim(0));
    /* What the program has it keeps, whatever becomes of the graph. */
    OK(cuGraphExecDestroy(second));
    OK(cuGraphDestroy(graph));
    REQUIRE(word(memory) == 7 && room() <= before - size);
    OK(cuMemFree(memory));
    require_nothing_left(before);
    REQUIRE(told(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH) >= size);
    OK(cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &zero));
    OK(cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH, &zero));
    REQUIRE(told(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH) == 0 && told(CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) == 0);
}

/* A graph that needs more than there is cannot be instantiated, and then nothing is missing. */
static void too_much(void)
{
    CUgraph graph, small;
    CUgraphExec exec = NULL;
    CUdeviceptr first, second, other;
    size_t before = room(), part = before / 4 * 3;
    OK(cuGraphCreate(&graph, 0));
    filled(graph, part, 1, &first);
    filled(graph, part, 2, &second);
    REQUIRE(first + part <= second || second + part <= first);
    for (int i = 0; i < 10; i++) {
        CUDA_GRAPH_INSTANTIATE_PARAMS how = {.result_out = CUDA_GRAPH_INSTANTIATE_SUCCESS};
        EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuGraphInstantiate(&exec, graph, 0));
        EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuGraphInstantiateWithParams(&exec, graph, &how));
        REQUIRE(how.result_out == CUDA_GRAPH_INSTANTIATE_ERROR && exec == NULL);
        require_nothing_left(before);
    }
    OK(cuGraphDestroy(graph));

    /* What an executable has nobody else gets; when it is gone they do. */
    OK(cuGraphCreate(&small, 0));
    CUgraphNode fill = filled(small, part, 3, &first), freed;
    OK(cuGraphAddMemFreeNode(&freed, small, &fill, 1, first));
    OK(cuGraphInstantiate(&exec, small, 0));
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&other, part));
    for (int i = 0; i < 3; i++) OK(cuGraphLaunch(exec, NULL));
    OK(cuGraphExecDestroy(exec));
    OK(cuMemAlloc(&other, part));
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuGraphInstantiate(&exec, small, 0));
    OK(cuMemFree(other));
    OK(cuGraphInstantiate(&exec, small, 0));
    OK(cuGraphLaunch(exec, NULL));
    OK(cuCtxSynchronize());
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(small));
    require_nothing_left(before);
}

/* Many small nodes do not cost a large piece each. */
static void small(void)
{
    CUgraph graph;
    CUgraphExec exec;
    CUdeviceptr memory[64];
    size_t before = room();
    OK(cuGraphCreate(&graph, 0));
    for (unsigned i = 0; i < 64; i++) filled(graph, 1000, i, &memory[i]);
    OK(cuGraphInstantiate(&exec, graph, 0));
    OK(cuGraphLaunch(exec, NULL));
    REQUIRE(before - room() <= 8 << 20);
    for (unsigned i = 0; i < 64; i++) REQUIRE(word(memory[i]) == i);
    OK(cuGraphExecDestroy(exec));
    for (unsigned i = 0; i < 64; i++) OK(cuMemFreeAsync(memory[i], NULL));
    OK(cuGraphDestroy(graph));
    OK(cuCtxSynchronize());
    require_nothing_left(before);
}

/* One graph frees what another one allocates. */
static void freed_elsewhere(size_t size)
{
    CUgraph graph, other;
    CUgraphExec exec, freeing;
    CUgraphNode copied, freed;
    CUdeviceptr memory, result;
    OK(cuMemAlloc(&result, 4));
    size_t before = room();
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphCreate(&other, 0));
    filled(graph, size, 11, &memory);
    CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = memory, .dstMemoryType =
                          CU_MEMORYTYPE_DEVICE, .dstDevice = result, .WidthInBytes = 4, .Height = 1, .Depth = 1};
    OK(cuGraphAddMemcpyNode(&copied, other, NULL, 0, &copy, context));
    OK(cuGraphAddMemFreeNode(&freed, other, &copied, 1, memory));
    OK(cuGraphInstantiate(&exec, graph, 0));
    OK(cuGraphInstantiate(&freeing, other, 0));
    OK(cuGraphLaunch(exec, NULL));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphLaunch(freeing, NULL));
    REQUIRE(word(result) == 11 && told(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) == 0);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(freeing, NULL));
    OK(cuGraphExecDestroy(freeing));
    OK(cuGraphDestroy(graph));
    OK(cuGraphDestroy(other));
    require_nothing_left(before);
    OK(cuMemFree(result));
}

/* A context that ends takes along what its graphs have. */
static void with_its_context(size_t size)
{
    CUcontext own = context;
    CUgraph graph;
    CUgraphExec exec;
    CUdeviceptr memory;
    size_t before = room();
    for (int i = 0; i < 3; i++) {
        OK(cuCtxCreate(&context, NULL, 0, 0));
        OK(cuGraphCreate(&graph, 0));
        filled(graph, size, 5, &memory);
        OK(cuGraphInstantiate(&exec, graph, 0));
        OK(cuGraphDestroy(graph));
        OK(cuCtxDestroy(context));
        OK(cuCtxSetCurrent(own));
        OK(cuGraphExecDestroy(exec));
    }
    context = own;
    require_nothing_left(before);
}

int main(void)
{
    context = start();
    size_t size = room() / 8;
    charged(size);
    too_much();
    small();
    freed_elsewhere(size);
    with_its_context(room() / 4 * 3);
    return passed();
}
