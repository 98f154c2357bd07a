/* Copies that speak of host memory and are given memory of a device: the address decides, whatever the function says of
 * it. Every form with every kind of memory on both sides, against the bytes. NVIDIA's driver: not measured. */
#include "driver.h"

enum { BYTES = 512, ROW = 16, PITCH = 32, ROWS = BYTES / PITCH, KINDS = 8 };

typedef void copy_form(CUdeviceptr to, CUdeviceptr from, CUstream stream);

/* Memory of each kind, to copy from and to. */
static CUdeviceptr sources[KINDS], targets[KINDS];
static CUcontext context;
static CUarray array;
static unsigned turn;

static void plain(CUdeviceptr *address)
{
    OK(cuMemAlloc(address, BYTES));
}

static void pooled(CUdeviceptr *address)
{
    OK(cuMemAllocAsync(address, BYTES, CU_STREAM_LEGACY));
    OK(cuStreamSynchronize(CU_STREAM_LEGACY));
}

static void mapped(CUdeviceptr *address)
{
    CUmemAllocationProp wanted = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}}};
    CUmemGenericAllocationHandle memory;
    size_t size;
    OK(cuMemGetAllocationGranularity(&size, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    OK(cuMemAddressReserve(address, size, 0, 0, 0));
    OK(cuMemCreate(&memory, size, &wanted, 0));
    OK(cuMemMap(*address, size, 0, memory, 0));
    CUmemAccessDesc access = {wanted.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    OK(cuMemSetAccess(*address, size, &access, 1));
    OK(cuMemRelease(memory));
    *address += size - BYTES;
}

static void managed(CUdeviceptr *address)
{
    OK(cuMemAllocManaged(address, BYTES, CU_MEM_ATTACH_GLOBAL));
}

static void page_locked(CUdeviceptr *address)
{
    void *memory;
    OK(cuMemHostAlloc(&memory, BYTES, 0));
    *address = (CUdeviceptr)memory;
}

static void of_a_module(CUdeviceptr *address)
{
    CUmodule module;
    size_t size;
    OK(cuModuleLoadData(&module, ".version 7.0\n.target sm_70\n.address_size 64\n"
                                 ".visible .global .align 16 .b8 room[512];\n"));
    OK(cuModuleGetGlobal(address, &size, module, "room"));
    REQUIRE(size == BYTES);
}

static void of_a_graph(CUdeviceptr *address)
{
    CUDA_MEM_ALLOC_NODE_PARAMS wanted = {.bytesize = BYTES};
    CUgraph graph;
    CUgraphExec executable;
    CUgraphNode node;
    wanted.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &wanted));
    OK(cuGraphInstantiate(&executable, graph, 0));
    OK(cuGraphLaunch(executable, CU_STREAM_LEGACY));
    OK(cuStreamSynchronize(CU_STREAM_LEGACY));
    *address = wanted.dptr;
}

static void of_another_context(CUdeviceptr *address)
{
    CUcontext other;
    OK(cuCtxCreate(&other, NULL, 0, 0));
    plain(address);
    OK(cuCtxSetCurrent(context));
}

static void (*const kinds[KINDS])(CUdeviceptr *) = {plain,       pooled,      mapped,     managed,
                                                    page_locked, of_a_module, of_a_graph, of_another_context};

static void h_to_d(CUdeviceptr to, CUdeviceptr from, CUstream stream)
{
    (void)stream;
    OK(cuMemcpyHtoD(to, (void *)from, BYTES));
}

static void d_to_h(CUdeviceptr to, CUdeviceptr from, CUstream stream)
{
    (void)stream;
    OK(cuMemcpyDtoH((void *)to, from, BYTES));
}

static void h_to_d_async(CUdeviceptr to, CUdeviceptr from, CUstream stream)
{
    OK(cuMemcpyHtoDAsync(to, (void *)from, BYTES, stream));
}

static void d_to_h_async(CUdeviceptr to, CUdeviceptr from, CUstream stream)
{
    OK(cuMemcpyDtoHAsync((void *)to, from, BYTES, stream));
}

static void through_an_array(CUdeviceptr to, CUdeviceptr from, CUstream stream)
{
    (void)stream;
    OK(cuMemcpyHtoA(array, 0, (void *)from, BYTES));
    OK(cuMemcpyAtoH((void *)to, array, 0, BYTES));
}

static void through_an_array_async(CUdeviceptr to, CUdeviceptr from, CUstream stream)
{
    OK(cuMemcpyHtoAAsync(array, 0, (void *)from, BYTES, stream));
    OK(cuMemcpyAtoHAsync((void *)to, array, 0, BYTES, stream));
}

static CUDA_MEMCPY2D plane(CUdeviceptr to, CUdeviceptr from)
{
    return (CUDA_MEMCPY2D){.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = (void *)from, .srcPitch = PITCH,
                           .dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = (void *)to, .dstPitch = PITCH,
                           .WidthInBytes = ROW, .Height = ROWS};
}

static CUDA_MEMCPY3D volume(CUdeviceptr to, CUdeviceptr from)
{
    return (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = (void *)from, .srcPitch = PITCH,
                           .srcHeight = ROWS / 2, .dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = (void *)to,
                           .dstPitch = PITCH, .dstHeight = ROWS / 2, .WidthInBytes = ROW, .Height = ROWS / 2, .Depth = 2};
}

static CUDA_MEMCPY3D_PEER peers(CUdeviceptr to, CUdeviceptr from)
{
    return (CUDA_MEMCPY3D_PEER){.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = (void *)from, .srcContext = context,
                                .srcPitch = PITCH, .srcHeight = ROWS, .dstMemoryType = CU_MEMORYTYPE_HOST,
                                .dstHost = (void *)to, .dstContext = context, .dstPitch = PITCH, .dstHeight = ROWS,
                                .WidthInBytes = ROW, .Height = ROWS, .Depth = 1};
}

static void in_a_plane(CUdeviceptr to, CUdeviceptr from, CUstream stream)
{
    CUDA_MEMCPY2D copy = plane(to, from);
    (void)stream;
    OK(turn % 2 ? cuMemcpy2D(&copy) : cuMemcpy2DUnaligned(&copy));
}

static void in_a_plane_async(CUdeviceptr to, CUdeviceptr from, CUstream stream)
{
    CUDA_MEMCPY2D copy = plane(to, from);
    OK(cuMemcpy2DAsync(&copy, stream));
}

static void in_a_volume(CUdeviceptr to, CUdeviceptr from, CUstream stream)
{
    CUDA_MEMCPY3D copy = volume(to, from);
    (void)stream;
    OK(cuMemcpy3D(&copy));
}

static void in_a_volume_async(CUdeviceptr to, CUdeviceptr from, CUstream stream)
{
    CUDA_MEMCPY3D copy = volume(to, from);
    OK(cuMemcpy3DAsync(&copy, stream));
}

static void between_contexts(CUdeviceptr to, CUdeviceptr from, CUstream stream)
{
    CUDA_MEMCPY3D_PEER copy = peers(to, from);
    (void)stream;
    OK(cuMemcpy3DPeer(&copy));
}

static void between_contexts_async(CUdeviceptr to, CUdeviceptr from, CUstream stream)
{
    CUDA_MEMCPY3D_PEER copy = peers(to, from);
    OK(cuMemcpy3DPeerAsync(&copy, stream));
}

static void launched(CUgraph graph, CUgraphExec executable, CUstream stream)
{
    OK(cuGraphLaunch(executable, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuGraphExecDestroy(executable));
    OK(cuGraphDestroy(graph));
}

/* A node's description is given back as it was, and the executable takes other addresses. */
static void as_a_node(CUdeviceptr to, CUdeviceptr from, CUstream stream)
{
    CUDA_MEMCPY3D copy = volume(to, from), elsewhere = volume(to, to), told;
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec executable;
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddMemcpyNode(&node, graph, NULL, 0, &elsewhere, context));
    OK(cuGraphInstantiate(&executable, graph, 0));
    if (turn % 2) {
        OK(cuGraphExecMemcpyNodeSetParams(executable, node, &copy, context));
    } else {
        CUgraphExecUpdateResultInfo result;
        OK(cuGraphMemcpyNodeSetParams(node, &copy));
        OK(cuGraphMemcpyNodeGetParams(node, &told));
        REQUIRE(told.srcHost == (void *)from && told.dstHost == (void *)to);
        REQUIRE(told.srcMemoryType == CU_MEMORYTYPE_HOST && told.dstMemoryType == CU_MEMORYTYPE_HOST);
        OK(cuGraphExecUpdate(executable, graph, &result));
    }
    launched(graph, executable, stream);
}

/* Only a stream that is no default one is captured. */
static void captured(CUdeviceptr to, CUdeviceptr from, CUstream stream)
{
    CUgraph graph;
    CUgraphExec executable;
    CUstream recorded;
    OK(cuStreamCreate(&recorded, CU_STREAM_NON_BLOCKING));
    OK(cuStreamBeginCapture(recorded, CU_STREAM_CAPTURE_MODE_RELAXED));
    turn % 2 ? h_to_d_async(to, from, recorded) : d_to_h_async(to, from, recorded);
    OK(cuStreamEndCapture(recorded, &graph));
    OK(cuStreamDestroy(recorded));
    OK(cuGraphInstantiate(&executable, graph, 0));
    launched(graph, executable, stream);
}

static const struct {
    copy_form *copy;
    int in_rows;
} forms[] = {
    {h_to_d, 0},          {d_to_h, 0},           {h_to_d_async, 0},     {d_to_h_async, 0},
    {through_an_array, 0}, {through_an_array_async, 0}, {in_a_plane, 1}, {in_a_plane_async, 1},
    {in_a_volume, 1},     {in_a_volume_async, 1}, {between_contexts, 1}, {between_contexts_async, 1},
    {as_a_node, 1},       {captured, 0},
};

static void check(unsigned form, CUdeviceptr to, CUdeviceptr from, CUstream stream)
{
    unsigned char given[BYTES], back[BYTES];
    turn++;
    for (unsigned i = 0; i < BYTES; i++) given[i] = (unsigned char)(turn * 31 + i * 7 + i / PITCH);
    OK(cuMemcpy(from, (CUdeviceptr)given, BYTES));
    OK(cuMemsetD8(to, 0xee, BYTES));
    OK(cuCtxSynchronize());
    forms[form].copy(to, from, stream);
    OK(cuStreamSynchronize(stream));
    OK(cuMemcpyDtoH(back, to, BYTES));
    for (unsigned i = 0; i < BYTES; i++) REQUIRE(back[i] == (forms[form].in_rows && i % PITCH >= ROW ? 0xee : given[i]));
}

static void CUDA_CB take_a_while(void *done)
{
    for (volatile unsigned i = 0; i < 20000000; i++) {}
    *(volatile int *)done = 1;
}

/* A form that is not asynchronous returns when the copy is complete, hence also all work before it. */
static void blocking_forms_wait(void)
{
    CUDA_MEMCPY2D copy = plane(targets[0], sources[0]);
    volatile int done = 0;
    OK(cuLaunchHostFunc(NULL, take_a_while, (void *)&done));
    h_to_d(targets[0], sources[0], NULL);
    REQUIRE(done);
    done = 0;
    OK(cuLaunchHostFunc(NULL, take_a_while, (void *)&done));
    d_to_h(targets[0], sources[0], NULL);
    REQUIRE(done);
    done = 0;
    OK(cuLaunchHostFunc(NULL, take_a_while, (void *)&done));
    OK(cuMemcpy2D(&copy));
    REQUIRE(done);
}

/* Memory that is gone, or ends before the copy does, stays an error; so does host memory as a device's. */
static void what_stays_an_error(void)
{
    static unsigned char words[BYTES];
    CUdeviceptr gone, end = sources[0] + BYTES - 8;
    CUDA_MEMCPY2D copy = plane(targets[0], end);
    OK(cuMemAlloc(&gone, 1 << 21));
    OK(cuMemFree(gone));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(targets[0], (void *)gone, 8));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH((void *)gone, sources[0], 8));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(targets[0], (void *)end, BYTES));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoHAsync((void *)(targets[0] + BYTES - 8), sources[0], BYTES, NULL));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D(&copy));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(targets[0], NULL, BYTES));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD((CUdeviceptr)words, (void *)sources[0], BYTES));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH((void *)targets[0], (CUdeviceptr)words, BYTES));
}

int main(void)
{
    CUDA_ARRAY_DESCRIPTOR line = {.Width = BYTES, .Height = 0, .Format = CU_AD_FORMAT_UNSIGNED_INT8, .NumChannels = 1};
    CUstream streams[] = {CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, NULL};
    context = start();
    OK(cuArrayCreate(&array, &line));
    OK(cuStreamCreate(&streams[2], CU_STREAM_NON_BLOCKING));
    for (int kind = 0; kind < KINDS; kind++) {
        kinds[kind](&sources[kind]);
        kinds[kind](&targets[kind]);
    }
    for (unsigned form = 0; form < sizeof forms / sizeof *forms; form++)
        for (int to = 0; to < KINDS; to++)
            for (int from = 0; from < KINDS; from++) check(form, targets[to], sources[from], streams[(form + to + from) % 3]);
    blocking_forms_wait();
    what_stays_an_error();
    return passed();
}
