/* The forms that functions of graphs had in earlier versions of CUDA, and those that are newer than their plain names. */
#define __CUDA_API_VERSION_INTERNAL
#include "check.h"
#include <cuda.h>
#include <string.h>

enum { WORDS = 64 };
static CUdeviceptr data;
static CUcontext context;
static CUfunction fill;

static const char *const ptx =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry fill(.param .u64 data, .param .u32 value)\n{\n"
    ".reg .b64 %d<3>;\n.reg .b32 %r<3>;\n"
    "ld.param.u64 %d1, [data];\nld.param.u32 %r1, [value];\nmov.u32 %r2, %tid.x;\n"
    "mul.wide.u32 %d2, %r2, 4;\nadd.s64 %d1, %d1, %d2;\nst.global.u32 [%d1], %r1;\nret;\n}\n";

static unsigned word(void)
{
    unsigned value;
    OK(cuMemcpyDtoH_v2(&value, data, sizeof value));
    return value;
}

static void kernels(void)
{
    CUgraph graph, like;
    CUgraphNode node, twin, wrong = (CUgraphNode)1;
    CUgraphExec exec;
    CUgraphExecUpdateResult result = CU_GRAPH_EXEC_UPDATE_ERROR;
    unsigned value = 7;
    void *parameters[] = {&data, &value};
    CUDA_KERNEL_NODE_PARAMS_v1 launch = {.func = fill, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = WORDS,
                                         .blockDimY = 1, .blockDimZ = 1, .kernelParams = parameters}, told;
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddKernelNode(&node, graph, NULL, 0, &launch));
    memset(&told, 0, sizeof told);
    OK(cuGraphKernelNodeGetParams(node, &told));
    REQUIRE(told.func == fill && told.blockDimX == WORDS && *(unsigned *)told.kernelParams[1] == 7);
    value = 8;
    OK(cuGraphKernelNodeSetParams(node, &launch));
    OK(cuGraphInstantiate(&exec, graph, NULL, NULL, 0));
    OK(cuGraphLaunch(exec, NULL));
    REQUIRE(word() == 8);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphInstantiate_v2(&exec, graph, NULL, NULL, 0));
    value = 9;
    OK(cuGraphExecKernelNodeSetParams(exec, node, &launch));
    OK(cuGraphLaunch(exec, NULL));
    REQUIRE(word() == 9);
    value = 10;
    OK(cuGraphCreate(&like, 0));
    OK(cuGraphAddKernelNode(&twin, like, NULL, 0, &launch));
    OK(cuGraphExecUpdate(exec, like, &wrong, &result));
    REQUIRE(result == CU_GRAPH_EXEC_UPDATE_SUCCESS && wrong == NULL);
    OK(cuGraphLaunch(exec, NULL));
    REQUIRE(word() == 10);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuGraphDestroy(like));
}

static void edges(void)
{
    CUgraph graph;
    CUgraphNode a, b, c, from[3], to[3];
    CUgraphEdgeData kinds[3];
    CUgraphNodeParams empty = {.type = CU_GRAPH_NODE_TYPE_EMPTY}, told;
    size_t count = 3;
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddNode(&a, graph, NULL, 0, &empty));
    OK(cuGraphAddNode_v3(&b, graph, &a, NULL, 1, &empty));
    OK(cuGraphAddEmptyNode(&c, graph, NULL, 0));
    OK(cuGraphAddDependencies(graph, &b, &c, 1));
    OK(cuGraphGetEdges(graph, from, to, &count));
    REQUIRE(count == 2 && from[0] == a && to[0] == b && from[1] == b && to[1] == c);
    count = 3;
    OK(cuGraphNodeGetDependencies(b, from, &count));
    REQUIRE(count == 1 && from[0] == a);
    count = 3;
    OK(cuGraphNodeGetDependencies_v2(c, from, kinds, &count));
    REQUIRE(count == 1 && from[0] == b && kinds[0].type == 0);
    count = 3;
    OK(cuGraphNodeGetDependentNodes(a, to, &count));
    REQUIRE(count == 1 && to[0] == b);
    count = 3;
    OK(cuGraphNodeGetDependentNodes_v2(b, to, kinds, &count));
    REQUIRE(count == 1 && to[0] == c);
    OK(cuGraphRemoveDependencies(graph, &b, &c, 1));
    OK(cuGraphNodeGetDependencies(c, NULL, &count));
    REQUIRE(count == 0);
    told.type = CU_GRAPH_NODE_TYPE_KERNEL;
    OK(cuGraphNodeGetParams(a, &told));
    REQUIRE(told.type == CU_GRAPH_NODE_TYPE_EMPTY);
    FAILS(cuGraphNodeSetParams_v2(a, &empty));
    OK(cuGraphDestroy(graph));
}

/* Captures whose mode is the strictest, and their dependencies without edge data. */
static void captures(void)
{
    CUgraph graph;
    CUgraphNode first, second;
    CUstream stream;
    CUdeviceptr memory;
    size_t count;
    unsigned value = 1;
    void *parameters[] = {&data, &value};
    CUgraphNodeParams changed = {.type = CU_GRAPH_NODE_TYPE_KERNEL}, told;
    const CUgraphNode *waits;
    CUstreamCaptureStatus status;
    cuuint64_t id;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamBeginCapture(stream));
    FAILS(cuMemAlloc_v2(&memory, 64));
    FAILS(cuStreamEndCapture(stream, &graph));
    OK(cuStreamBeginCapture(stream));
    OK(cuLaunchKernel(fill, 1, 1, 1, WORDS, 1, 1, 0, stream, parameters, NULL));
    cuuint64_t plain_id = 0;
    OK(cuStreamGetCaptureInfo(stream, &status, &plain_id));
    REQUIRE(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    OK(cuStreamGetCaptureInfo_v2(stream, &status, &id, &graph, &waits, &count));
    REQUIRE(plain_id == id);
    first = waits[0];
    OK(cuStreamUpdateCaptureDependencies(stream, NULL, 0, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
    OK(cuLaunchKernel(fill, 1, 1, 1, WORDS, 1, 1, 0, stream, parameters, NULL));
    OK(cuStreamGetCaptureInfo_v2(stream, &status, &id, &graph, &waits, &count));
    second = waits[0];
    OK(cuGraphNodeGetDependencies(second, NULL, &count));
    REQUIRE(count == 0);
    OK(cuStreamUpdateCaptureDependencies(stream, &first, 1, CU_STREAM_ADD_CAPTURE_DEPENDENCIES));
    OK(cuStreamEndCapture(stream, &graph));
    value = 2;
    OK(cuGraphNodeGetParams(first, &told));
    changed.kernel = told.kernel;
    changed.kernel.kernelParams = parameters;
    OK(cuGraphNodeSetParams_v2(first, &changed));
    OK(cuGraphNodeGetParams(first, &told));
    REQUIRE(*(unsigned *)told.kernel.kernelParams[1] == 2);
    OK(cuGraphDestroy(graph));
    OK(cuStreamDestroy_v2(stream));
}

int main(void)
{
    CUmodule module;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuModuleLoadData(&module, ptx));
    OK(cuModuleGetFunction(&fill, module, "fill"));
    OK(cuMemAlloc_v2(&data, WORDS * 4));
    kernels();
    edges();
    captures();
    return passed();
}
