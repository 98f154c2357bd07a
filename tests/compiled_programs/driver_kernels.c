/* Modules, libraries, kernels and functions: the ways to load and find them, what they say about themselves, and
 * every way to launch them. */
#include "driver.h"
#include <stdint.h>
#include <unistd.h>

static CUdeviceptr data;

/* A fat binary as compilers write it: a header of 16 bytes and one uncompressed entry, PTX, whose header has 64. */
static const void *fat_binary(void)
{
    static union { struct {
        uint32_t magic; uint16_t version, header; uint64_t size;
        uint16_t kind, entry_version; uint32_t entry_header; uint64_t padded;
        uint32_t compressed, unused; uint16_t minor, major; uint32_t arch; uint64_t strings, flags, more, raw;
        char text[1024];
    } is; uint64_t aligned; } fat;
    size_t padded = (strlen(scale_ptx) + 8) / 8 * 8;
    REQUIRE(padded <= sizeof fat.is.text);
    fat.is.magic = 0xba55ed50, fat.is.version = 1, fat.is.header = 16, fat.is.size = 64 + padded;
    fat.is.kind = 1, fat.is.entry_version = 0x101, fat.is.entry_header = 64, fat.is.padded = padded;
    fat.is.major = 7, fat.is.arch = 70, fat.is.flags = 1;
    strcpy(fat.is.text, scale_ptx);
    return &fat;
}

static void launch(CUfunction function, unsigned factor)
{
    void *parameters[] = {&data, &factor};
    OK(cuLaunchKernel(function, 2, 1, 1, WORDS / 2, 1, 1, 0, NULL, parameters, NULL));
}

static void works(CUfunction scale)
{
    unsigned words[WORDS];
    count_up(words, 0);
    OK(cuMemcpyHtoD(data, words, sizeof words));
    launch(scale, 3);
    require_words(data, 3, 5);
}

static void modules(const char *path)
{
    CUmodule modules[5], module;
    CUfunction scale, listed[2] = {NULL, NULL};
    const char *first, *second, *name;
    unsigned count = 0;
    CUlinkState link;
    void *image;
    size_t size = 0;
    CUjit_option options[] = {CU_JIT_OPTIMIZATION_LEVEL};
    void *values[] = {(void *)(uintptr_t)2};
    OK(cuModuleLoad(&modules[0], path));
    OK(cuModuleLoadData(&modules[1], scale_ptx));
    OK(cuModuleLoadDataEx(&modules[2], scale_ptx, 1, options, values));
    OK(cuModuleLoadFatBinary(&modules[3], fat_binary()));
    OK(cuLinkCreate(0, NULL, NULL, &link));
    OK(cuLinkAddFile(link, CU_JIT_INPUT_PTX, path, 0, NULL, NULL));
    OK(cuLinkComplete(link, &image, &size));
    OK(cuModuleLoadData(&modules[4], image));
    OK(cuLinkDestroy(link));
    FAILS(cuLinkDestroy(NULL));
    for (int i = 0; i < 5; i++) {
        OK(cuModuleGetFunction(&scale, modules[i], "scale"));
        OK(cuFuncGetModule(&module, scale));
        REQUIRE(module == modules[i]);
        works(scale);
    }
    OK(cuModuleGetFunctionCount(&count, module));
    REQUIRE(count == 2);
    OK(cuModuleEnumerateFunctions(listed, 2, module));
    OK(cuFuncGetName(&first, listed[0]));
    OK(cuFuncGetName(&second, listed[1]));
    REQUIRE(strcmp(first, "scale") == 0 ? strcmp(second, "nothing") == 0 : strcmp(first, "nothing") == 0);
    OK(cuFuncGetName(&name, scale));
    REQUIRE(strcmp(name, "scale") == 0);

    CUdeviceptr bias;
    OK(cuModuleGetGlobal(&bias, &size, module, "bias"));
    REQUIRE(size == 4);
    OK(cuMemsetD32(bias, 40, 1));
    OK(cuMemsetD32(data, 1, WORDS));
    launch(scale, 2);
    unsigned word;
    OK(cuMemcpyDtoH(&word, data + 4 * (WORDS - 1), 4));
    REQUIRE(word == 42);
    for (int i = 0; i < 5; i++) OK(cuModuleUnload(modules[i]));
    FAILS(cuModuleUnload(modules[0]));
}

static void functions(void)
{
    CUmodule module;
    CUfunction scale;
    CUfunctionLoadingState state;
    size_t count = 0, offset = 0, size = 0;
    int value = -1;
    OK(cuModuleLoadData(&module, scale_ptx));
    OK(cuModuleGetFunction(&scale, module, "scale"));
    OK(cuFuncLoad(scale));
    FAILS(cuFuncLoad(NULL));
    OK(cuFuncIsLoaded(&state, scale));
    REQUIRE(state == CU_FUNCTION_LOADING_STATE_LOADED);
    OK(cuFuncGetParamCount(scale, &count));
    REQUIRE(count == 2);
    OK(cuFuncGetParamInfo(scale, 1, &offset, &size));
    REQUIRE(offset == 8 && size == 4);
    OK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, scale));
    REQUIRE(value == 1024);
    OK(cuFuncSetAttribute(scale, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 50000));
    OK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, scale));
    REQUIRE(value == 50000);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuFuncSetAttribute(scale, CU_FUNC_ATTRIBUTE_NUM_REGS, 1));
    OK(cuFuncSetCacheConfig(scale, CU_FUNC_CACHE_PREFER_SHARED));
    FAILS(cuFuncSetCacheConfig(scale, (CUfunc_cache)99));
    OK(cuFuncSetSharedMemConfig(scale, CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE));
    FAILS(cuFuncSetSharedMemConfig(scale, (CUsharedconfig)99));
    works(scale);
    OK(cuModuleUnload(module));
}

static void libraries(const char *path)
{
    CUlibrary library, from_file, owner;
    CUkernel scale, kernels[2] = {NULL, NULL};
    CUfunction function;
    CUmodule module, of_function;
    CUdeviceptr bias;
    const char *name;
    unsigned count = 0;
    size_t parameters = 0, offset = 0, size = 0;
    int value = -1;
    void *pointer;
    OK(cuLibraryLoadData(&library, scale_ptx, NULL, NULL, 0, NULL, NULL, 0));
    OK(cuLibraryLoadFromFile(&from_file, path, NULL, NULL, 0, NULL, NULL, 0));
    OK(cuLibraryGetKernel(&scale, from_file, "scale"));
    OK(cuKernelGetLibrary(&owner, scale));
    REQUIRE(owner == from_file);
    works((CUfunction)scale);
    OK(cuLibraryUnload(from_file));

    OK(cuLibraryGetKernelCount(&count, library));
    REQUIRE(count == 2);
    OK(cuLibraryEnumerateKernels(kernels, 2, library));
    OK(cuLibraryGetKernel(&scale, library, "scale"));
    REQUIRE((kernels[0] == scale) + (kernels[1] == scale) == 1);
    OK(cuKernelGetName(&name, scale));
    REQUIRE(strcmp(name, "scale") == 0);
    OK(cuKernelGetParamCount(scale, &parameters));
    REQUIRE(parameters == 2);
    OK(cuKernelGetParamInfo(scale, 1, &offset, &size));
    REQUIRE(offset == 8 && size == 4);
    OK(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 60000, scale, 0));
    OK(cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, scale, 0));
    REQUIRE(value == 60000);
    OK(cuKernelSetCacheConfig(scale, CU_FUNC_CACHE_PREFER_L1, 0));
    FAILS(cuKernelSetCacheConfig(scale, (CUfunc_cache)99, 0));
    OK(cuKernelGetFunction(&function, scale));
    OK(cuLibraryGetModule(&module, library));
    OK(cuFuncGetModule(&of_function, function));
    REQUIRE(module == of_function);
    works(function);
    OK(cuLibraryGetGlobal(&bias, &size, library, "bias"));
    REQUIRE(size == 4);
    OK(cuMemcpyDtoH(&count, bias, 4));
    REQUIRE(count == 5);
    EXPECT(CUDA_ERROR_NOT_FOUND, cuLibraryGetGlobal(&bias, &size, library, "no such variable"));
    EXPECT(CUDA_ERROR_NOT_FOUND, cuLibraryGetManaged(&bias, &size, library, "bias"));
    EXPECT(CUDA_ERROR_NOT_FOUND, cuLibraryGetUnifiedFunction(&pointer, library, "scale"));
    OK(cuLibraryUnload(library));
    FAILS(cuLibraryUnload(library));
}

static void launches(void)
{
    CUmodule module;
    CUfunction scale;
    CUstream stream;
    OK(cuModuleLoadData(&module, scale_ptx));
    OK(cuModuleGetFunction(&scale, module, "scale"));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    unsigned words[WORDS], factor = 2;
    void *parameters[] = {&data, &factor};
    count_up(words, 0);
    OK(cuMemcpyHtoD(data, words, sizeof words));

    /* With attributes. */
    CUlaunchAttribute attributes[1];
    memset(attributes, 0, sizeof attributes);
    attributes[0].id = CU_LAUNCH_ATTRIBUTE_PRIORITY;
    CUlaunchConfig config = {.gridDimX = 4, .gridDimY = 1, .gridDimZ = 1, .blockDimX = WORDS / 4, .blockDimY = 1,
                             .blockDimZ = 1, .hStream = stream, .attrs = attributes, .numAttrs = 1};
    OK(cuLaunchKernelEx(&config, scale, parameters, NULL));
    OK(cuStreamSynchronize(stream));
    require_words(data, 2, 5);

    /* With one buffer for all parameters. */
    struct { CUdeviceptr data; unsigned factor; } packed = {data, 1};
    size_t size = 12;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
    config.numAttrs = 0;
    OK(cuLaunchKernelEx(&config, scale, NULL, extra));
    OK(cuStreamSynchronize(stream));
    require_words(data, 2, 10);

    /* Where all blocks are at work at once: only if the device says that it can. */
    CUresult launched = cuLaunchCooperativeKernel(scale, 1, 1, 1, WORDS, 1, 1, 0, stream, parameters);
    EXPECT(attribute(CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH) ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED, launched);
    OK(cuStreamSynchronize(stream));
    if (launched) require_words(data, 2, 10);
    else require_words(data, 4, 25);
    OK(cuStreamDestroy(stream));
    OK(cuModuleUnload(module));
}

static size_t grows(int block) { return 64 * block; }

static void occupancy(void)
{
    CUmodule module;
    CUfunction scale;
    int blocks = 0, flagged = 0, grid = 0, block = 0, clusters;
    int threads = attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
    int processors = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    size_t bytes = 0;
    OK(cuModuleLoadData(&module, scale_ptx));
    OK(cuModuleGetFunction(&scale, module, "scale"));
    OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, scale, 256, 0));
    REQUIRE(blocks >= 1 && blocks * 256 <= threads);
    OK(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&flagged, scale, 256, 0, CU_OCCUPANCY_DEFAULT));
    REQUIRE(flagged == blocks);
    OK(cuOccupancyMaxPotentialBlockSize(&grid, &block, scale, NULL, 0, 0));
    REQUIRE(block % 32 == 0 && block > 0 && grid >= processors);
    OK(cuOccupancyMaxPotentialBlockSizeWithFlags(&grid, &block, scale, grows, 0, 128, CU_OCCUPANCY_DEFAULT));
    REQUIRE(block > 0 && block <= 128 && grid >= processors);
    OK(cuOccupancyAvailableDynamicSMemPerBlock(&bytes, scale, 2, 128));
    REQUIRE(bytes > 0 && 2 * bytes <= (size_t)attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR));

    CUlaunchConfig config = {.gridDimX = 8, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 32, .blockDimY = 1, .blockDimZ = 1};
    CUresult size = cuOccupancyMaxPotentialClusterSize(&clusters, scale, &config);
    if (attribute(CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH)) REQUIRE(size == CUDA_SUCCESS && clusters >= 1);
    else REQUIRE(size != CUDA_SUCCESS);
    /* A block is a cluster of one, also where there are no others; then none of two fits. */
    OK(cuOccupancyMaxActiveClusters(&clusters, scale, &config));
    REQUIRE(clusters >= 1);
    CUlaunchAttribute two = {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, .value.clusterDim = {2, 1, 1}};
    config.attrs = &two;
    config.numAttrs = 1;
    OK(cuOccupancyMaxActiveClusters(&clusters, scale, &config));
    REQUIRE((clusters >= 1) == !!attribute(CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH));
    OK(cuFuncSetAttribute(scale, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1));
    int allowed = 0;
    OK(cuFuncGetAttribute(&allowed, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, scale));
    REQUIRE(allowed == 1);
    OK(cuModuleUnload(module));
}

/* A block beyond a kernel's launch bounds is refused with 1 by whatever launches it. */
static void bounds(void)
{
    static const char *const ptx =
        ".version 7.0\n.target sm_70\n.address_size 64\n"
        ".visible .entry at_most_64() .maxntid 64, 1, 1 { ret; }\n"
        ".visible .entry at_most_64_in_a_plane() .maxntid 8, 8, 1 { ret; }\n";
    const char *names[] = {"at_most_64", "at_most_64_in_a_plane"};
    CUmodule module;
    CUstream stream;
    OK(cuModuleLoadData(&module, ptx));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < 2; i++) {
        CUfunction function;
        CUgraph graph;
        CUgraphNode node, none;
        CUgraphExec exec;
        int most = 0;
        OK(cuModuleGetFunction(&function, module, names[i]));
        OK(cuFuncGetAttribute(&most, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function));
        REQUIRE(most == 64);
        OK(cuLaunchKernel(function, 1, 1, 1, 64, 1, 1, 0, stream, NULL, NULL));
        OK(cuLaunchKernel(function, 1, 1, 1, 4, 4, 4, 0, stream, NULL, NULL));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(function, 1, 1, 1, 65, 1, 1, 0, stream, NULL, NULL));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(function, 1, 1, 1, 8, 9, 1, 0, stream, NULL, NULL));
        CUlaunchConfig config = {.gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 96, .blockDimY = 1, .blockDimZ
                                 = 1, .hStream = stream};
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchKernelEx(&config, function, NULL, NULL));
        if (attribute(CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH))
            EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchCooperativeKernel(function, 1, 1, 1, 96, 1, 1, 0, stream, NULL));
        /* The limit is the image's: no attribute changes it. */
        OK(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1024));
        FAILS(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 128));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(function, 1, 1, 1, 128, 1, 1, 1024, stream, NULL, NULL));

        CUDA_KERNEL_NODE_PARAMS params = {.func = function, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 64,
                                          .blockDimY = 1, .blockDimZ = 1};
        OK(cuGraphCreate(&graph, 0));
        OK(cuGraphAddKernelNode(&node, graph, NULL, 0, &params));
        OK(cuGraphInstantiate(&exec, graph, 0));
        params.blockDimY = 2;
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphAddKernelNode(&none, graph, NULL, 0, &params));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphKernelNodeSetParams(node, &params));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphExecKernelNodeSetParams(exec, node, &params));
        OK(cuGraphExecDestroy(exec));
        OK(cuGraphDestroy(graph));
        OK(cuStreamSynchronize(stream));
    }
    OK(cuStreamDestroy(stream));
    OK(cuModuleUnload(module));
}

int main(void)
{
    char path[] = "/tmp/remotegpu-XXXXXX";
    int file = mkstemp(path);
    REQUIRE(file >= 0 && write(file, scale_ptx, strlen(scale_ptx)) == (ssize_t)strlen(scale_ptx) && close(file) == 0);
    start();
    OK(cuMemAlloc(&data, 4 * WORDS));
    modules(path);
    functions();
    libraries(path);
    launches();
    occupancy();
    bounds();
    OK(cuMemFree(data));
    OK(cuDevicePrimaryCtxRelease(0));
    REQUIRE(unlink(path) == 0);
    return passed();
}
