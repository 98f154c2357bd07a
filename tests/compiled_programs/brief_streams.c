/* A stream for each task: made, given work, waited for and destroyed, more often than a process may have threads. */
#include "driver.h"
#include <pthread.h>

enum { TASKS = 5000 };

static CUcontext context;
static CUfunction scale;
static CUdeviceptr data;

static void launch(CUstream stream)
{
    unsigned one = 1;
    void *arguments[] = {&data, &one};
    OK(cuLaunchKernel(scale, 1, 1, 1, WORDS, 1, 1, 0, stream, arguments, NULL));
}

static void *in_a_thread(void *unused)
{
    (void)unused;
    OK(cuCtxSetCurrent(context));
    launch(CU_STREAM_PER_THREAD);
    OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    return NULL;
}

int main(void)
{
    CUmodule module;
    unsigned words[WORDS];
    context = start();
    OK(cuModuleLoadData(&module, scale_ptx));
    OK(cuModuleGetFunction(&scale, module, "scale"));
    OK(cuMemAlloc(&data, sizeof words));
    count_up(words, 0);
    OK(cuMemcpyHtoD(data, words, sizeof words));
    for (int i = 0; i < TASKS; i++) {
        CUstream stream;
        OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        launch(stream);
        OK(cuStreamSynchronize(stream));
        OK(cuStreamDestroy(stream));
    }
    require_words(data, 1, 5 * TASKS);
    for (int i = 0; i < TASKS; i++) {
        pthread_t thread;
        REQUIRE(pthread_create(&thread, NULL, in_a_thread, NULL) == 0);
        REQUIRE(pthread_join(thread, NULL) == 0);
    }
    require_words(data, 1, 2 * 5 * TASKS);
    return passed();
}
