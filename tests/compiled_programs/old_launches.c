/* Launches from before CUDA 4.0: a function keeps block, shared memory and parameters until its next launch. */
#define __CUDA_API_VERSION_INTERNAL
#include "driver.h"

/* mixed: data[block.y * gridDim.x + block.x][thread] = word + (int)(real * 2) + last; the last one is eight bytes long. */
static const char *const ptx =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".extern .shared .align 4 .b8 room[];\n"
    ".visible .entry mixed(.param .u64 data, .param .u32 word, .param .f32 real, .param .u64 last)\n"
    "{\n"
    "    .reg .b64 %d<5>;\n    .reg .b32 %r<16>;\n    .reg .f32 %f<3>;\n"
    "    ld.param.u64 %d1, [data];\n    ld.param.u32 %r1, [word];\n"
    "    ld.param.f32 %f1, [real];\n    ld.param.u64 %d4, [last];\n"
    "    mov.u32 %r2, %ctaid.x;\n    mov.u32 %r3, %ctaid.y;\n    mov.u32 %r4, %nctaid.x;\n"
    "    mad.lo.u32 %r5, %r3, %r4, %r2;\n"
    "    mov.u32 %r6, %ntid.x;\n    mov.u32 %r7, %ntid.y;\n    mul.lo.u32 %r8, %r6, %r7;\n"
    "    mov.u32 %r9, %tid.x;\n    mov.u32 %r10, %tid.y;\n    mad.lo.u32 %r11, %r10, %r6, %r9;\n"
    "    mad.lo.u32 %r5, %r5, %r8, %r11;\n    mul.wide.u32 %d2, %r5, 4;\n    add.s64 %d1, %d1, %d2;\n"
    "    add.f32 %f2, %f1, %f1;\n    cvt.rzi.u32.f32 %r12, %f2;\n    add.u32 %r12, %r12, %r1;\n"
    "    cvt.u32.u64 %r13, %d4;\n    add.u32 %r12, %r12, %r13;\n"
    "    mov.u32 %r14, %dynamic_smem_size;\n    mul.lo.u32 %r14, %r14, 1000;\n    add.u32 %r12, %r12, %r14;\n"
    "    st.global.u32 [%d1], %r12;\n    ret;\n"
    "}\n";

static CUfunction mixed;
static CUdeviceptr data;

/* The first words hold this value, the others nothing. */
static void wrote(unsigned count, unsigned value)
{
    unsigned words[WORDS];
    OK(cuMemcpyDtoH_v2(words, data, sizeof words));
    for (unsigned i = 0; i < WORDS; i++) REQUIRE(words[i] == (i < count ? value : 0));
    OK(cuMemsetD32_v2(data, 0, WORDS));
    OK(cuCtxSynchronize());
}

static void parameters(unsigned word, float real, unsigned long long last)
{
    OK(cuParamSetv(mixed, 0, &data, sizeof data));
    OK(cuParamSeti(mixed, 8, word));
    OK(cuParamSetf(mixed, 12, real));
    OK(cuParamSetv(mixed, 16, &last, sizeof last));
    OK(cuParamSetSize(mixed, 24));
}

int main(void)
{
    CUmodule module;
    CUstream stream;
    start();
    OK(cuModuleLoadData(&module, ptx));
    OK(cuModuleGetFunction(&mixed, module, "mixed"));
    OK(cuMemAlloc_v2(&data, 4 * WORDS));
    OK(cuMemsetD32_v2(data, 0, WORDS));
    OK(cuCtxSynchronize());

    parameters(7, 1.5f, 100);
    OK(cuFuncSetBlockShape(mixed, 4, 2, 1));
    OK(cuLaunch(mixed));
    wrote(8, 110);
    /* All is kept: one value changes, the rest is as it was. */
    OK(cuParamSeti(mixed, 8, 20));
    OK(cuLaunchGrid(mixed, 3, 2));
    wrote(48, 123);
    OK(cuFuncSetSharedSize(mixed, 16));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuLaunchGridAsync(mixed, 2, 1, stream));
    OK(cuStreamSynchronize(stream));
    wrote(16, 16123);
    OK(cuFuncSetSharedSize(mixed, 0));
    /* Bytes beyond the size that is set are not passed: the kernel sees 0 there. */
    OK(cuParamSetSize(mixed, 16));
    OK(cuLaunch(mixed));
    wrote(8, 23);
    OK(cuParamSetSize(mixed, 24));
    OK(cuLaunch(mixed));
    wrote(8, 123);

    /* A launch of CUDA 4.0 overwrites the state with its own. */
    unsigned word = 1;
    float real = 2;
    unsigned long long last = 3;
    void *each[] = {&data, &word, &real, &last};
    OK(cuLaunchKernel(mixed, 1, 1, 1, 5, 1, 1, 0, NULL, each, NULL));
    wrote(5, 8);
    OK(cuLaunchGrid(mixed, 2, 1));
    wrote(10, 8);

    /* A captured launch is one of the graph, with the values that it had. */
    CUgraph graph;
    CUgraphExec exec;
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    OK(cuLaunchGridAsync(mixed, 1, 1, stream));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuParamSeti(mixed, 8, 50));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    wrote(5, 8);
    OK(cuLaunch(mixed));
    wrote(5, 57);

    EXPECT(CUDA_ERROR_INVALID_VALUE, cuFuncSetBlockShape(mixed, -1, 1, 1));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuParamSeti(mixed, -4, 1));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuParamSetv(mixed, 0, NULL, 4));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchGrid(mixed, 0, 1));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchGrid(mixed, -1, 1));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuLaunch(NULL));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuParamSetSize(NULL, 4));
    FAILS(cuParamSetSize(mixed, 1 << 20));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuStreamDestroy_v2(stream));
    OK(cuMemFree_v2(data));
    OK(cuModuleUnload(module));
    OK(cuDevicePrimaryCtxRelease_v2(0));
    return passed();
}
