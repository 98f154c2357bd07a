/* The driver API from C: modules, libraries, linking, both ways of passing parameters, and codes for what is not there. */
#include "check.h"
#include <cuda.h>
#include <string.h>

static const char *ptx =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .global .align 4 .u32 bias = 5;\n"
    ".visible .entry scale(.param .u64 data, .param .u32 factor)\n"
    "{\n"
    "    .reg .b64 %d<4>;\n    .reg .b32 %r<6>;\n"
    "    ld.param.u64 %d1, [data];\n    ld.param.u32 %r1, [factor];\n"
    "    mov.u32 %r2, %tid.x;\n    mul.wide.u32 %d2, %r2, 4;\n    add.s64 %d1, %d1, %d2;\n"
    "    ld.global.u32 %r3, [%d1];\n    ld.global.u32 %r4, [bias];\n"
    "    mad.lo.u32 %r3, %r3, %r1, %r4;\n    st.global.u32 [%d1], %r3;\n    ret;\n"
    "}\n";

static const char *caller =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".extern .func (.param .b32 out) twice(.param .b32 in);\n"
    ".visible .entry use_twice(.param .u64 data)\n"
    "{\n"
    "    .reg .b64 %d<2>;\n    .reg .b32 %r<3>;\n"
    "    ld.param.u64 %d1, [data];\n    ld.global.u32 %r1, [%d1];\n"
    "    { .param .b32 a; .param .b32 b; st.param.b32 [a], %r1; call (b), twice, (a); ld.param.b32 %r2, [b]; }\n"
    "    st.global.u32 [%d1], %r2;\n    ret;\n"
    "}\n";

static const char *callee =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .func (.param .b32 out) twice(.param .b32 in)\n"
    "{\n"
    "    .reg .b32 %r<3>;\n    ld.param.b32 %r1, [in];\n    add.s32 %r2, %r1, %r1;\n"
    "    st.param.b32 [out], %r2;\n    ret;\n"
    "}\n";

static void check(CUdeviceptr data, const unsigned *expected, int n)
{
    unsigned host[32];
    OK(cuMemcpyDtoH(host, data, n * sizeof *host));
    for (int i = 0; i < n; i++) REQUIRE(host[i] == expected[i]);
}

int main(void)
{
    int count;
    EXPECT(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGetCount(&count));
    OK(cuInit(0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuInit(1));
    CUdevice device;
    CUcontext context, current;
    EXPECT(CUDA_ERROR_INVALID_DEVICE, cuDeviceGet(&device, 1000));
    OK(cuDeviceGet(&device, 0));
    CUdeviceptr data;
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc(&data, 16));
    OK(cuCtxCreate(&context, NULL, 0, device));
    OK(cuCtxGetCurrent(&current));
    REQUIRE(current == context);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAlloc(&data, 0));
    OK(cuMemAlloc(&data, 4096));

    /* A module. */
    CUmodule module;
    CUfunction scale, missing;
    OK(cuModuleLoadData(&module, ptx));
    OK(cuModuleGetFunction(&scale, module, "scale"));
    EXPECT(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&missing, module, "scales"));
    unsigned ones[32], expected[32], factor = 3;
    for (int i = 0; i < 32; i++) ones[i] = i, expected[i] = 3 * i + 5;
    OK(cuMemcpyHtoD(data, ones, sizeof ones));
    void *parameters[] = {&data, &factor};
    OK(cuLaunchKernel(scale, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL));
    check(data, expected, 32);

    /* The same with one buffer of parameters. */
    struct { CUdeviceptr data; unsigned factor; } packed = {data, 2};
    size_t size = sizeof packed.data + sizeof packed.factor;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
    OK(cuLaunchKernel(scale, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, extra));
    for (int i = 0; i < 32; i++) expected[i] = 2 * expected[i] + 5;
    check(data, expected, 32);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(scale, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, extra));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(scale, 1, 1, 1, 2048, 1, 1, 0, NULL, parameters, NULL));

    size_t offset, width;
    OK(cuFuncGetParamInfo(scale, 1, &offset, &width));
    REQUIRE(offset == 8 && width == 4);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuFuncGetParamInfo(scale, 2, &offset, &width));

    /* Its variable. */
    CUdeviceptr bias;
    OK(cuModuleGetGlobal(&bias, &size, module, "bias"));
    REQUIRE(size == 4);
    EXPECT(CUDA_ERROR_NOT_FOUND, cuModuleGetGlobal(&bias, &size, module, "nothing"));
    OK(cuModuleGetGlobal(&bias, NULL, module, "bias"));
    OK(cuMemsetD32(bias, 0, 1));
    OK(cuLaunchKernel(scale, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL));
    for (int i = 0; i < 32; i++) expected[i] *= 3;
    check(data, expected, 32);
    OK(cuModuleUnload(module));

    /* A library belongs to no context. */
    CUlibrary library;
    CUkernel kernel;
    CUfunction of_kernel;
    OK(cuLibraryLoadData(&library, ptx, NULL, NULL, 0, NULL, NULL, 0));
    OK(cuLibraryGetKernel(&kernel, library, "scale"));
    EXPECT(CUDA_ERROR_NOT_FOUND, cuLibraryGetKernel(&kernel, library, "scales"));
    OK(cuKernelGetFunction(&of_kernel, kernel));
    OK(cuLaunchKernel((CUfunction)kernel, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL));
    OK(cuLaunchKernel(of_kernel, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL));
    for (int i = 0; i < 32; i++) expected[i] = (3 * expected[i] + 5) * 3 + 5;
    check(data, expected, 32);
    const char *name;
    OK(cuKernelGetName(&name, kernel));
    REQUIRE(strcmp(name, "scale") == 0);
    OK(cuLibraryUnload(library));

    /* Two texts linked to one image. */
    CUlinkState link;
    void *image;
    OK(cuLinkCreate(0, NULL, NULL, &link));
    OK(cuLinkAddData(link, CU_JIT_INPUT_PTX, (void *)caller, strlen(caller) + 1, "caller", 0, NULL, NULL));
    OK(cuLinkAddData(link, CU_JIT_INPUT_PTX, (void *)callee, strlen(callee) + 1, "callee", 0, NULL, NULL));
    OK(cuLinkComplete(link, &image, &size));
    REQUIRE(size > 0);
    OK(cuModuleLoadData(&module, image));
    OK(cuLinkDestroy(link));
    OK(cuModuleGetFunction(&scale, module, "use_twice"));
    OK(cuMemsetD32(data, 21, 1));
    OK(cuLaunchKernel(scale, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
    expected[0] = 42;
    check(data, expected, 1);
    OK(cuModuleUnload(module));

    /* Images that are none, with the compiler's log. */
    char log[512] = "";
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, (void *)sizeof log};
    EXPECT(CUDA_ERROR_INVALID_PTX,
           cuModuleLoadDataEx(&module, ".version 7.0\n.target sm_70\nnonsense here;\n", 2, options, values));
    REQUIRE(strlen(log) > 0);
    FAILS(cuModuleLoadData(&module, "BCxx"));
    EXPECT(CUDA_ERROR_FILE_NOT_FOUND, cuModuleLoad(&module, "/nonexistent/file.ptx"));

    OK(cuMemFree(data));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree(data));
    OK(cuCtxDestroy(context));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxSynchronize());
    return passed();
}
