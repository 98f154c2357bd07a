/* Memory that a program takes while a context of its is being destroyed: neither waits for the work of that context, which
 * here waits for the program. */
#include "driver.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

enum { ROUNDS = 20, BYTES = 8 << 20 };

static atomic_int entered, released;
static CUcontext second;

static void until_released(void *unused)
{
    (void)unused;
    entered = 1;
    while (!released) sched_yield();
}

static void *destroy(void *unused)
{
    OK(cuCtxDestroy(second));
    return unused;
}

int main(void)
{
    CUcontext first = start();
    CUstream stream;
    CUdeviceptr memory[ROUNDS];
    pthread_t thread;
    OK(cuCtxCreate(&second, NULL, 0, 0));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuLaunchHostFunc(stream, until_released, NULL));
    while (!entered) sched_yield();
    REQUIRE(pthread_create(&thread, NULL, destroy, NULL) == 0);
    OK(cuCtxSetCurrent(first));
    /* Some of these come after the destruction was asked for, whether that call waits for the work or not. */
    for (int i = 0; i < ROUNDS; i++) {
        OK(cuMemAlloc(&memory[i], BYTES));
        OK(cuMemsetD8Async(memory[i], (unsigned char)i, BYTES, NULL));
    }
    released = 1;
    REQUIRE(pthread_join(thread, NULL) == 0);
    for (int i = 0; i < ROUNDS; i++) {
        unsigned char last = 255;
        OK(cuMemcpyDtoH(&last, memory[i] + BYTES - 1, 1));
        REQUIRE(last == i);
        OK(cuMemFree(memory[i]));
    }
    return passed();
}
