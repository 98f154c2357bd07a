/* CUDA in destructors: of thread-local objects made before and after a thread's first call, of pthread keys, of static
 * objects, and in atexit handlers. Contexts, streams and memory are still there, and memory is given back. */
#include "driver.h"
#include <atomic>
#include <pthread.h>
#include <thread>

enum { THREADS = 40, BYTES = 4 << 20 };

static CUcontext context;
static std::atomic<int> ended;

/* Device memory whose destructor looks at what work on the thread's own stream left there, and frees it. */
struct Holder {
    CUdeviceptr memory = 0;
    CUcontext own = nullptr;

    void take(unsigned char value, size_t bytes)
    {
        OK(cuCtxGetCurrent(&own));
        OK(cuMemAlloc(&memory, bytes));
        OK(cuMemsetD8Async(memory, value, bytes, CU_STREAM_PER_THREAD));
        expected = value;
    }

    ~Holder()
    {
        if (!memory) return;
        CUcontext current = nullptr;
        unsigned char found = 0;
        OK(cuCtxGetCurrent(&current));
        REQUIRE(current == own);
        OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
        OK(cuMemcpyDtoH(&found, memory, 1));
        REQUIRE(found == expected);
        OK(cuCtxPushCurrent(own));
        OK(cuCtxPopCurrent(&current));
        REQUIRE(current == own);
        OK(cuMemFree(memory));
        ended++;
    }

    unsigned char expected = 0;
};

static pthread_key_t key;

static void end_of_key(void *value)
{
    CUcontext current = nullptr;
    OK(cuCtxGetCurrent(&current));
    REQUIRE(current == context);
    OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    OK(cuMemFree((CUdeviceptr)value));
    ended++;
}

static void in_threads()
{
    for (int i = 0; i < THREADS; i++) {
        std::thread([i] {
            thread_local Holder before; /* made before the thread's first call, so it ends after what that call made */
            before.memory = 0;
            OK(cuCtxSetCurrent(context));
            before.take((unsigned char)i, BYTES);
            thread_local Holder after;
            after.take((unsigned char)(i + 1), BYTES);
            CUdeviceptr by_key;
            OK(cuMemAlloc(&by_key, BYTES));
            OK(cuMemsetD8Async(by_key, 1, BYTES, CU_STREAM_PER_THREAD));
            REQUIRE(pthread_setspecific(key, (void *)by_key) == 0);
        }).join();
    }
    REQUIRE(ended == 3 * THREADS);
}

static void handler()
{
    CUdeviceptr memory;
    CUcontext current = nullptr;
    OK(cuCtxGetCurrent(&current));
    REQUIRE(current == context);
    OK(cuMemAlloc(&memory, 4096));
    OK(cuMemsetD8(memory, 7, 4096));
    OK(cuMemFree(memory));
    ended++;
}

/* Made before main and so ended last: by then all the others have. */
static struct Last {
    CUdeviceptr memory = 0;
    ~Last()
    {
        if (!memory) return;
        OK(cuMemFree(memory));
        REQUIRE(ended == 3 * THREADS + 3);
        passed();
        fflush(stdout);
    }
} last;

static Holder &made_late()
{
    static Holder holder;
    return holder;
}

int main()
{
    static Holder made_early; /* before cuInit */
    made_early.memory = 0;
    context = start();
    size_t before, after, total;
    REQUIRE(pthread_key_create(&key, end_of_key) == 0);
    OK(cuMemGetInfo(&before, &total));
    in_threads();
    OK(cuMemGetInfo(&after, &total));
    REQUIRE(before - after < 8 * (size_t)BYTES);
    made_early.take(3, 4096);
    made_late().take(4, 4096);
    OK(cuMemAlloc(&last.memory, 4096));
    REQUIRE(atexit(handler) == 0);
    return 0;
}
