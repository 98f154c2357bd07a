/* A driver takes little of its caller's stack: the first calls of all kinds, each on a thread or a fiber with a small one.
 * Below each stack nothing can be touched. */
#define _GNU_SOURCE
#include "driver.h"
#include <dlfcn.h>
#include <pthread.h>
#include <sys/mman.h>
#include <ucontext.h>

enum { STACK = 32 << 10, GUARD = 1 << 20, BYTES = 16 << 20 };

static void *buffer;
static CUcontext context;
static CUmodule module;
static CUfunction scale;
static CUstream stream;
static CUdeviceptr data;

static void *new_stack(void)
{
    char *base = mmap(NULL, GUARD + STACK, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(base != MAP_FAILED && mprotect(base + GUARD, STACK, PROT_READ | PROT_WRITE) == 0);
    return base + GUARD;
}

static void use_nvml(void)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    REQUIRE(library);
    OK(((int (*)(void))dlsym(library, "nvmlInit_v2"))());
}

static void initialise(void)
{
    OK(cuInit(0));
}

static void open_session(void)
{
    OK(cuDevicePrimaryCtxRetain(&context, 0));
}

static void load(void)
{
    OK(cuModuleLoadData(&module, scale_ptx));
    OK(cuModuleGetFunction(&scale, module, "scale"));
}

static void allocate(void)
{
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc(&data, BYTES));
    OK(cuMemsetD32Async(data, 2, BYTES / 4, stream));
    OK(cuStreamSynchronize(stream));
}

static void launch(void)
{
    unsigned factor = 3;
    void *arguments[] = {&data, &factor};
    OK(cuLaunchKernel(scale, 1, 1, 1, WORDS, 1, 1, 0, stream, arguments, NULL));
    OK(cuCtxSynchronize());
}

static void copy(void)
{
    void *pinned;
    OK(cuMemHostAlloc(&pinned, BYTES, 0));
    OK(cuMemcpyDtoHAsync(pinned, data, BYTES, stream));
    OK(cuStreamSynchronize(stream));
    REQUIRE(*(unsigned *)pinned == 11);
    OK(cuMemcpyDtoH(buffer, data, BYTES));
    OK(cuMemcpyHtoD(data, buffer, BYTES));
    REQUIRE(*(unsigned *)buffer == 11);
    OK(cuMemFreeHost(pinned));
}

static void capture(void)
{
    CUgraph graph;
    CUgraphExec executable;
    unsigned factor = 1;
    void *arguments[] = {&data, &factor};
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuLaunchKernel(scale, 1, 1, 1, WORDS, 1, 1, 0, stream, arguments, NULL));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiate(&executable, graph, 0));
    OK(cuGraphLaunch(executable, stream));
    OK(cuStreamSynchronize(stream));
}

static void give_back(void)
{
    OK(cuMemFree(data));
    OK(cuModuleUnload(module));
    OK(cuStreamDestroy(stream));
    OK(cuDevicePrimaryCtxReset(0));
}

static void (*const steps[])(void) = {
    use_nvml, initialise, open_session, load, allocate, launch, copy, capture, give_back,
};

static void take(void (*step)(void))
{
    if (context) OK(cuCtxSetCurrent(context));
    step();
}

static void *on_a_thread(void *step)
{
    take(*(void (*const *)(void))step);
    return NULL;
}

static ucontext_t of_main;
static void (*of_fiber)(void);

static void on_a_fiber(void)
{
    take(of_fiber);
}

int main(int count, char **arguments)
{
    (void)arguments;
    REQUIRE((buffer = malloc(BYTES)));
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        if (count > 1) {
            ucontext_t fiber;
            REQUIRE(getcontext(&fiber) == 0);
            fiber.uc_stack.ss_sp = new_stack();
            fiber.uc_stack.ss_size = STACK;
            fiber.uc_link = &of_main;
            of_fiber = steps[i];
            makecontext(&fiber, on_a_fiber, 0);
            REQUIRE(swapcontext(&of_main, &fiber) == 0);
        } else {
            pthread_t thread;
            pthread_attr_t attributes;
            REQUIRE(pthread_attr_init(&attributes) == 0);
            REQUIRE(pthread_attr_setstack(&attributes, new_stack(), STACK) == 0);
            REQUIRE(pthread_create(&thread, &attributes, on_a_thread, (void *)&steps[i]) == 0);
            REQUIRE(pthread_join(thread, NULL) == 0);
        }
    }
    return passed();
}
