/* Asks NVRTC for machine code and runs it, as torch's jiterator does: argv[1] says how NVRTC is found. */
#include <cuda.h>
#include <dlfcn.h>
#include <nvrtc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(call)                                                              \
    do {                                                                         \
        int code = (call);                                                       \
        if (code) {                                                              \
            printf("%s: %d\n", #call, code);                                     \
            exit(1);                                                             \
        }                                                                        \
    } while (0)

static const char source[] = "extern \"C\" __global__ void twice(int *x) { x[threadIdx.x] *= 2; }";

static struct {
    nvrtcResult (*create)(nvrtcProgram *, const char *, const char *, int, const char *const *, const char *const *);
    nvrtcResult (*compile)(nvrtcProgram, int, const char *const *);
    nvrtcResult (*size)(nvrtcProgram, size_t *);
    nvrtcResult (*get)(nvrtcProgram, char *);
    nvrtcResult (*ptx_size)(nvrtcProgram, size_t *);
    nvrtcResult (*destroy)(nvrtcProgram *);
} nvrtc;

static void by_name(void *library)
{
    if (!library) printf("%s\n", dlerror()), exit(1);
    nvrtc.create = dlsym(library, "nvrtcCreateProgram");
    nvrtc.compile = dlsym(library, "nvrtcCompileProgram");
    nvrtc.size = dlsym(library, "nvrtcGetCUBINSize");
    nvrtc.get = dlsym(library, "nvrtcGetCUBIN");
    nvrtc.ptx_size = dlsym(library, "nvrtcGetPTXSize");
    nvrtc.destroy = dlsym(library, "nvrtcDestroyProgram");
}

static void find(const char *how, const char *real)
{
    if (!strcmp(how, "linked")) {
        nvrtc.create = nvrtcCreateProgram, nvrtc.compile = nvrtcCompileProgram, nvrtc.destroy = nvrtcDestroyProgram;
        nvrtc.size = nvrtcGetCUBINSize, nvrtc.get = nvrtcGetCUBIN, nvrtc.ptx_size = nvrtcGetPTXSize;
        return;
    }
    /* As a library does that has the real one in its own folder, before the program asks. */
    if (!strcmp(how, "after the real one") && !dlopen(real, RTLD_NOW | RTLD_GLOBAL)) printf("%s\n", dlerror()), exit(1);
    by_name(dlopen("libnvrtc.so.13", RTLD_NOW));
}

/* The image of the kernel, by options of the form that is asked for. */
static char *compiled(const char *const *options, int count, size_t *size, size_t *ptx_size)
{
    nvrtcProgram program;
    CHECK(nvrtc.create(&program, source, "twice.cu", 0, NULL, NULL));
    CHECK(nvrtc.compile(program, count, options));
    CHECK(nvrtc.size(program, size));
    CHECK(nvrtc.ptx_size(program, ptx_size));
    char *image = calloc(1, *size + 1);
    if (*size) CHECK(nvrtc.get(program, image));
    CHECK(nvrtc.destroy(&program));
    return image;
}

int main(int count, char **arguments)
{
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction function;
    CUdeviceptr memory;
    size_t size, ptx_size;
    int values[4] = {1, 2, 3, 4};
    if (count < 3) return 2;
    find(arguments[1], arguments[2]);
    const char *joined[] = {"--gpu-architecture=sm_80", "-DNDEBUG"}, *apart[] = {"-DNDEBUG", "-arch", "sm_80"};
    const char *virtual[] = {"-arch=compute_80"};
    free(compiled(apart, 3, &size, &ptx_size));
    printf("apart: %s\n", size ? "an image" : "nothing");
    free(compiled(virtual, 1, &size, &ptx_size));
    printf("compute_80: %zu bytes\n", size);
    char *image = compiled(joined, 2, &size, &ptx_size);
    printf("joined: %s\n", !memcmp(image + 1, "ELF", 3) ? "machine code" : strstr(image, ".visible .entry twice") ? "PTX" : "?");
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuModuleLoadData(&module, image));
    CHECK(cuModuleGetFunction(&function, module, "twice"));
    CHECK(cuMemAlloc(&memory, sizeof values));
    CHECK(cuMemcpyHtoD(memory, values, sizeof values));
    void *parameters[] = {&memory};
    CHECK(cuLaunchKernel(function, 1, 1, 1, 4, 1, 1, 0, NULL, parameters, NULL));
    CHECK(cuMemcpyDtoH(values, memory, sizeof values));
    printf("%d %d %d %d\n", values[0], values[1], values[2], values[3]);
    return 0;
}
