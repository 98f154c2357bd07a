// Prints what calls of the driver API cost, in microseconds a call: the best of 60 batches as their caller waits, and
// the processor time of the whole process over all of them.
// compare.py builds and runs it. It needs no headers of CUDA, and finds libcuda.so.1 as any program does.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ROUNDS = 60, BATCH = 500 };
typedef unsigned long long address;

static const char *image =
    ".version 7.0\n.target sm_52\n.address_size 64\n.visible .entry k(.param .u64 a, .param .u32 b) { ret; }\n";

static void *library;

static void *find(const char *name) {
    void *function = dlsym(library, name);
    if (!function) {
        fprintf(stderr, "libcuda.so.1 has no %s\n", name);
        exit(1);
    }
    return function;
}

static void check(int result, const char *call) {
    if (result) {
        fprintf(stderr, "%s answered %d\n", call, result);
        exit(1);
    }
}

#define CALL(name, ...) check(((int (*)())find_once_##name())(__VA_ARGS__), #name)
#define FUNCTION(name)                                                                                                 \
    static void *find_once_##name(void) {                                                                              \
        static void *function;                                                                                         \
        return function ? function : (function = find(#name));                                                         \
    }
FUNCTION(cuInit) FUNCTION(cuDeviceGet) FUNCTION(cuDevicePrimaryCtxRetain) FUNCTION(cuCtxSetCurrent)
FUNCTION(cuCtxGetCurrent) FUNCTION(cuCtxSynchronize) FUNCTION(cuModuleLoadData) FUNCTION(cuModuleGetFunction)
FUNCTION(cuLaunchKernel) FUNCTION(cuMemAlloc_v2) FUNCTION(cuMemFree_v2) FUNCTION(cuMemcpyHtoD_v2)
FUNCTION(cuMemcpyHtoDAsync_v2) FUNCTION(cuMemcpyDtoDAsync_v2) FUNCTION(cuMemcpyDtoH_v2) FUNCTION(cuMemsetD32Async)
FUNCTION(cuEventCreate) FUNCTION(cuEventRecord) FUNCTION(cuStreamCreate) FUNCTION(cuStreamWaitEvent)
FUNCTION(cuPointerGetAttribute)

static double now(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

// Between batches the device is waited for, so that none pays for work of the one before.
#define MEASURE(name, call)                                                                                            \
    do {                                                                                                               \
        double best = 1e18, used = now(CLOCK_PROCESS_CPUTIME_ID);                                                      \
        for (int round = 0; round < ROUNDS; round++) {                                                                 \
            double begun = now(CLOCK_MONOTONIC);                                                                       \
            for (int i = 0; i < BATCH; i++) {                                                                          \
                call;                                                                                                  \
            }                                                                                                          \
            double each = (now(CLOCK_MONOTONIC) - begun) / BATCH;                                                      \
            CALL(cuCtxSynchronize);                                                                                    \
            best = each < best ? each : best;                                                                          \
        }                                                                                                              \
        used = (now(CLOCK_PROCESS_CPUTIME_ID) - used) / ROUNDS / BATCH;                                                \
        printf("%s\t%.5f\t%.5f\n", name, best, used);                                                                 \
    } while (0)

int main(void) {
    int device, number = 3;
    void *context, *module, *kernel, *stream, *event, *current;
    address memory, other, base, many[BATCH];
    char bytes[64] = {0};
    if (!(library = dlopen("libcuda.so.1", RTLD_NOW))) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    CALL(cuInit, 0);
    CALL(cuDeviceGet, &device, 0);
    CALL(cuDevicePrimaryCtxRetain, &context, device);
    CALL(cuCtxSetCurrent, context);
    CALL(cuModuleLoadData, &module, image);
    CALL(cuModuleGetFunction, &kernel, module, "k");
    CALL(cuStreamCreate, &stream, 1);
    CALL(cuEventCreate, &event, 2);
    CALL(cuMemAlloc_v2, &memory, (size_t)4096);
    void *arguments[] = {&memory, &number};
    size_t few = 64;

    MEASURE("current context", CALL(cuCtxGetCurrent, &current));
    MEASURE("launch", CALL(cuLaunchKernel, kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments, (void **)0));
    MEASURE("allocate and free", CALL(cuMemAlloc_v2, &other, (size_t)4096); CALL(cuMemFree_v2, other));
    MEASURE("allocate", CALL(cuMemAlloc_v2, &many[i], (size_t)4096); if (i == BATCH - 1) for (int j = 0; j < BATCH; j++)
                CALL(cuMemFree_v2, many[j]));
    MEASURE("copy to the device, 64 bytes", CALL(cuMemcpyHtoD_v2, memory, bytes, few));
    MEASURE("the same, asynchronous", CALL(cuMemcpyHtoDAsync_v2, memory, bytes, few, stream));
    MEASURE("copy on the device, asynchronous", CALL(cuMemcpyDtoDAsync_v2, memory, memory + 2048, few, stream));
    MEASURE("copy to the host, 64 bytes", CALL(cuMemcpyDtoH_v2, bytes, memory, few));
    MEASURE("fill, asynchronous", CALL(cuMemsetD32Async, memory, 1, (size_t)16, stream));
    MEASURE("record an event", CALL(cuEventRecord, event, stream));
    MEASURE("wait for an event in a stream", CALL(cuStreamWaitEvent, stream, event, 0));
    MEASURE("attribute of a pointer", CALL(cuPointerGetAttribute, &base, 2, memory));
    MEASURE("synchronise, nothing to do", CALL(cuCtxSynchronize));
    MEASURE("launch and synchronise",
            CALL(cuLaunchKernel, kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments, (void **)0);
            CALL(cuCtxSynchronize));
    return 0;
}
