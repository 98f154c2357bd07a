/* Threads that wait for the GPU in each way are cancelled: each ends, with its clean-up, and the process goes on. */
#define _GNU_SOURCE
#include "driver.h"
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

static CUcontext context;
static CUstream stream;
static CUevent event;
static CUdeviceptr data;
static sem_t waiting, proceed;
static atomic_int cleaned;

static void CUDA_CB hold(void *unused)
{
    (void)unused;
    while (sem_wait(&proceed) != 0) {}
}

static void clean_up(void *unused)
{
    (void)unused;
    cleaned++;
}

static void *wait_on(void *way)
{
    unsigned word;
    OK(cuCtxSetCurrent(context));
    pthread_cleanup_push(clean_up, NULL);
    REQUIRE(sem_post(&waiting) == 0);
    switch (*(int *)way) {
    case 0: OK(cuCtxSynchronize()); break;
    case 1: OK(cuStreamSynchronize(stream)); break;
    case 2: OK(cuEventSynchronize(event)); break;
    default: OK(cuMemcpyDtoH(&word, data, sizeof word)); break;
    }
    for (;;) pthread_testcancel();
    pthread_cleanup_pop(0);
    return NULL;
}

int main(void)
{
    context = start();
    OK(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(cuMemAlloc(&data, 4096));
    REQUIRE(sem_init(&waiting, 0, 0) == 0 && sem_init(&proceed, 0, 0) == 0);
    for (int way = 0; way < 4; way++) {
        pthread_t thread;
        void *result = NULL;
        unsigned word = 0;
        OK(cuLaunchHostFunc(stream, hold, NULL));
        OK(cuMemsetD32Async(data, 7 + way, 1, stream));
        OK(cuEventRecord(event, stream));
        REQUIRE(pthread_create(&thread, NULL, wait_on, &way) == 0);
        while (sem_wait(&waiting) != 0) {}
        REQUIRE(pthread_cancel(thread) == 0);
        REQUIRE(sem_post(&proceed) == 0);
        REQUIRE(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
        REQUIRE(cleaned == way + 1);
        OK(cuStreamSynchronize(stream));
        OK(cuMemcpyDtoH(&word, data, sizeof word));
        REQUIRE(word == 7u + (unsigned)way);
    }
    return passed();
}
