/* Graphs that choose what they do: if, else, while, switch, one within another, and defaults for each launch. */
#include "check.h"
#include <cuda.h>
#include <string.h>

/* What nvcc would link in for cudaGraphSetConditional the driver provides by name. */
static const char *ptx =
    ".version 8.0\n.target sm_75\n.address_size 64\n"
    ".extern .func cudaGraphSetConditional(.param .b64 handle, .param .b32 value);\n"
    /* *count += step */
    ".visible .entry add(.param .u64 count, .param .u32 step)\n{\n"
    ".reg .b64 %rd<2>; .reg .b32 %r<4>;\n"
    "ld.param.u64 %rd1, [count]; ld.param.u32 %r1, [step];\n"
    "ld.global.u32 %r2, [%rd1]; add.u32 %r3, %r2, %r1; st.global.u32 [%rd1], %r3; ret;\n}\n"
    /* the condition is *count < limit */
    ".visible .entry below(.param .u64 count, .param .u32 limit, .param .u64 handle)\n{\n"
    ".reg .b64 %rd<3>; .reg .b32 %r<4>; .reg .pred %p1;\n"
    "ld.param.u64 %rd1, [count]; ld.param.u32 %r1, [limit]; ld.param.u64 %rd2, [handle];\n"
    "ld.global.u32 %r2, [%rd1]; setp.lt.u32 %p1, %r2, %r1; selp.u32 %r3, 1, 0, %p1;\n"
    "{\n.param .b64 a; .param .b32 b;\nst.param.b64 [a], %rd2; st.param.b32 [b], %r3;\n"
    "call.uni cudaGraphSetConditional, (a, b);\n}\nret;\n}\n"
    /* the condition is *value */
    ".visible .entry choose(.param .u64 value, .param .u64 handle)\n{\n"
    ".reg .b64 %rd<3>; .reg .b32 %r<2>;\n"
    "ld.param.u64 %rd1, [value]; ld.param.u64 %rd2, [handle]; ld.global.u32 %r1, [%rd1];\n"
    "{\n.param .b64 a; .param .b32 b;\nst.param.b64 [a], %rd2; st.param.b32 [b], %r1;\n"
    "call.uni cudaGraphSetConditional, (a, b);\n}\nret;\n}\n";

static CUfunction add, below, choose;
static CUcontext context;
static CUstream stream;
static CUdeviceptr count, value;

static CUgraphNode kernel(CUgraph graph, CUgraphNode after, CUfunction function, void **arguments)
{
    CUDA_KERNEL_NODE_PARAMS params;
    memset(&params, 0, sizeof params);
    params.func = function;
    params.gridDimX = params.gridDimY = params.gridDimZ = 1;
    params.blockDimX = params.blockDimY = params.blockDimZ = 1;
    params.kernelParams = arguments;
    CUgraphNode node;
    OK(cuGraphAddKernelNode(&node, graph, after ? &after : NULL, after ? 1 : 0, &params));
    return node;
}

static CUgraphNode adds(CUgraph graph, CUgraphNode after, unsigned step)
{
    return kernel(graph, after, add, (void *[]){&count, &step});
}

static CUgraphConditionalHandle condition(CUgraph graph, unsigned initial, unsigned flags)
{
    CUgraphConditionalHandle handle;
    OK(cuGraphConditionalHandleCreate(&handle, graph, context, initial, flags));
    return handle;
}

/* The graphs that the node chooses from. */
static CUgraph *chooses(CUgraphNode *node, CUgraph graph, CUgraphNode after, CUgraphConditionalHandle handle,
                        CUgraphConditionalNodeType type, unsigned size)
{
    CUgraphNodeParams params;
    memset(&params, 0, sizeof params);
    params.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
    params.conditional.handle = handle;
    params.conditional.type = type;
    params.conditional.size = size;
    params.conditional.ctx = context;
    OK(cuGraphAddNode(node, graph, after ? &after : NULL, NULL, after ? 1 : 0, &params));
    return params.conditional.phGraph_out;
}

static unsigned run(CUgraphExec exec, unsigned start, unsigned chosen)
{
    unsigned result;
    OK(cuMemsetD32(count, start, 1));
    OK(cuMemsetD32(value, chosen, 1));
    OK(cuCtxSynchronize());
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuMemcpyDtoH(&result, count, 4));
    return result;
}

static CUgraphExec instantiate(CUgraph graph)
{
    CUgraphExec exec;
    OK(cuGraphInstantiate(&exec, graph, 0));
    return exec;
}

static void if_and_else(void)
{
    CUgraph graph;
    OK(cuGraphCreate(&graph, 0));
    CUgraphConditionalHandle handle = condition(graph, 0, 0);
    CUgraphNode first = kernel(graph, NULL, choose, (void *[]){&value, &handle}), node;
    CUgraph *bodies = chooses(&node, graph, first, handle, CU_GRAPH_COND_TYPE_IF, 2);
    adds(bodies[0], adds(bodies[0], NULL, 10), 100);
    adds(bodies[1], NULL, 1000);
    adds(graph, node, 1);
    CUgraphNodeType type;
    OK(cuGraphNodeGetType(node, &type));
    REQUIRE(type == CU_GRAPH_NODE_TYPE_CONDITIONAL);
    CUgraphExec exec = instantiate(graph);
    REQUIRE(run(exec, 5, 1) == 116 && run(exec, 5, 0) == 1006 && run(exec, 0, 77) == 111);

    CUgraph clone, parent;
    CUgraphNode within;
    FAILS(cuGraphClone(&clone, graph));
    OK(cuGraphCreate(&parent, 0));
    FAILS(cuGraphAddChildGraphNode(&within, parent, NULL, 0, graph));
    OK(cuGraphDestroy(parent));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
}

static void loops(void)
{
    CUgraph graph;
    OK(cuGraphCreate(&graph, 0));
    unsigned limit = 50;
    CUgraphConditionalHandle handle = condition(graph, 1, CU_GRAPH_COND_ASSIGN_DEFAULT), inner;
    CUgraphNode node, nested;
    CUgraph *body = chooses(&node, graph, NULL, handle, CU_GRAPH_COND_TYPE_WHILE, 1);
    CUgraphNode last = adds(body[0], NULL, 3);
    /* Every turn of the loop asks an inner condition too. */
    inner = condition(body[0], 0, 0);
    last = kernel(body[0], last, choose, (void *[]){&value, &inner});
    CUgraph *deep = chooses(&nested, body[0], last, inner, CU_GRAPH_COND_TYPE_IF, 1);
    adds(deep[0], NULL, 4);
    kernel(body[0], nested, below, (void *[]){&count, &limit, &handle});
    CUgraphExec exec = instantiate(graph);
    REQUIRE(run(exec, 0, 0) == 51);  /* 17 turns of 3 */
    REQUIRE(run(exec, 0, 1) == 56);  /* 8 turns of 7 */
    REQUIRE(run(exec, 49, 0) == 52); /* the default lets each launch begin */
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
}

static void switches(void)
{
    CUgraph graph;
    OK(cuGraphCreate(&graph, 0));
    CUgraphConditionalHandle handle = condition(graph, 0, 0);
    CUgraphNode first = kernel(graph, NULL, choose, (void *[]){&value, &handle}), node;
    CUgraph *bodies = chooses(&node, graph, first, handle, CU_GRAPH_COND_TYPE_SWITCH, 3);
    for (unsigned i = 0; i < 3; i++) adds(bodies[i], NULL, 10 << (4 * i));
    CUgraphExec exec = instantiate(graph);
    REQUIRE(run(exec, 0, 0) == 10 && run(exec, 0, 1) == 160 && run(exec, 0, 2) == 2560 && run(exec, 7, 3) == 7);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
}

/* Memory is allocated in what a node chooses from as far as capturing goes, where Warp looks for it; nothing runs so. */
static void memory(void)
{
    CUgraph graph, captured;
    CUgraphNode node, within;
    CUgraphNodeType type;
    CUgraphExec exec;
    CUdeviceptr address;
    size_t nodes = 1;
    OK(cuGraphCreate(&graph, 0));
    CUgraph body = chooses(&node, graph, NULL, condition(graph, 1, 1), CU_GRAPH_COND_TYPE_IF, 1)[0];
    OK(cuStreamBeginCaptureToGraph(stream, body, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuMemAllocAsync(&address, 40, stream));
    OK(cuStreamEndCapture(stream, &captured));
    REQUIRE(captured == body);
    OK(cuGraphGetNodes(body, &within, &nodes));
    OK(cuGraphNodeGetType(within, &type));
    REQUIRE(nodes == 1 && type == CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiate(&exec, graph, 0));
    OK(cuGraphDestroy(graph));
}

static void wrong(void)
{
    CUgraph graph, other;
    CUgraphNode node;
    CUgraphNodeParams params;
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphCreate(&other, 0));
    CUgraphConditionalHandle handle = condition(graph, 0, 0);
    memset(&params, 0, sizeof params);
    params.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
    params.conditional.handle = handle;
    params.conditional.type = CU_GRAPH_COND_TYPE_WHILE;
    params.conditional.size = 2;
    params.conditional.ctx = context;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphAddNode(&node, graph, NULL, NULL, 0, &params));
    params.conditional.size = 1;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphAddNode(&node, other, NULL, NULL, 0, &params)); /* another graph's */
    FAILS(cuGraphConditionalHandleCreate(&handle, graph, context, 0, 8));
    OK(cuGraphDestroy(graph));
    OK(cuGraphDestroy(other));
}

int main(void)
{
    CUmodule module;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuModuleLoadData(&module, ptx));
    OK(cuModuleGetFunction(&add, module, "add"));
    OK(cuModuleGetFunction(&below, module, "below"));
    OK(cuModuleGetFunction(&choose, module, "choose"));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc(&count, 4));
    OK(cuMemAlloc(&value, 4));
    if_and_else();
    loops();
    switches();
    memory();
    wrong();
    OK(cuStreamDestroy(stream));
    OK(cuDevicePrimaryCtxRelease(0));
    return passed();
}
