/* Streams that wait for words, and write them. */
#include "driver.h"
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

static CUdeviceptr words;
static CUstream waiting, writing;

static CUstreamBatchMemOpParams wait_for(CUstreamBatchMemOpType operation, CUdeviceptr address, cuuint64_t value,
                                         unsigned flags)
{
    CUstreamBatchMemOpParams one;
    memset(&one, 0, sizeof one);
    one.waitValue.operation = operation; /* a write has the same form */
    one.waitValue.address = address;
    one.waitValue.value64 = value;
    one.waitValue.flags = flags;
    return one;
}

static void clear(void)
{
    OK(cuMemsetD32(words, 0, WORDS));
    OK(cuCtxSynchronize());
}

static unsigned word(unsigned i)
{
    unsigned value;
    OK(cuMemcpyDtoH(&value, words + 4 * i, 4));
    return value;
}

/* The stream that waits stands still until the other one has written; then it fills the last word. */
static void released_by_a_write(void)
{
    clear();
    OK(cuStreamWaitValue32(waiting, words, 3, CU_STREAM_WAIT_VALUE_GEQ));
    OK(cuMemsetD32Async(words + 4 * 9, 7, 1, waiting));
    OK(cuStreamWriteValue32(writing, words, 2, CU_STREAM_WRITE_VALUE_DEFAULT));
    OK(cuStreamSynchronize(writing));
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(waiting));
    OK(cuStreamWriteValue32(writing, words, 3, CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER));
    OK(cuStreamSynchronize(waiting));
    REQUIRE(word(0) == 3 && word(9) == 7);

    clear();
    cuuint64_t large = 1ull << 40, found = 0;
    OK(cuStreamWaitValue64(waiting, words, large, CU_STREAM_WAIT_VALUE_EQ));
    OK(cuMemsetD32Async(words + 4 * 9, 8, 1, waiting));
    OK(cuStreamWriteValue64(writing, words, 1, 0));
    OK(cuStreamSynchronize(writing));
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(waiting));
    OK(cuStreamWriteValue64(writing, words, large, 0));
    OK(cuStreamSynchronize(waiting));
    OK(cuMemcpyDtoH(&found, words, sizeof found));
    REQUIRE(found == large && word(9) == 8);
}

/* What a fill wrote is as good; each way to compare. */
static void conditions(void)
{
    clear();
    OK(cuStreamWaitValue32(waiting, words, 6, CU_STREAM_WAIT_VALUE_AND));
    OK(cuMemsetD32Async(words, 9, 1, writing));
    OK(cuStreamSynchronize(writing));
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(waiting));
    OK(cuMemsetD32Async(words, 2, 1, writing));
    OK(cuStreamSynchronize(waiting));
    REQUIRE(attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR) == 1);
    OK(cuMemsetD32Async(words, ~0u, 1, writing));
    OK(cuStreamSynchronize(writing));
    OK(cuStreamWaitValue32(waiting, words, 0, CU_STREAM_WAIT_VALUE_NOR));
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(waiting));
    OK(cuMemsetD32Async(words, 5, 1, writing));
    OK(cuStreamSynchronize(waiting));
}

static void batches(void)
{
    clear();
    CUstreamBatchMemOpParams all[4] = {
        wait_for(CU_STREAM_MEM_OP_WAIT_VALUE_32, words, 1, CU_STREAM_WAIT_VALUE_EQ),
        wait_for(CU_STREAM_MEM_OP_WRITE_VALUE_32, words + 4, 11, 0),
        wait_for(CU_STREAM_MEM_OP_BARRIER, 0, 0, 0),
        wait_for(CU_STREAM_MEM_OP_WRITE_VALUE_64, words + 8, 12, 0),
    };
    all[2].memoryBarrier.flags = CU_STREAM_MEMORY_BARRIER_TYPE_GPU;
    OK(cuStreamBatchMemOp(waiting, 4, all, 0));
    OK(cuStreamWaitValue64(writing, words + 8, 1, CU_STREAM_WAIT_VALUE_GEQ));
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(writing));
    CUstream third;
    OK(cuStreamCreate(&third, CU_STREAM_NON_BLOCKING));
    OK(cuStreamWriteValue32(third, words, 1, 0));
    OK(cuStreamSynchronize(writing));
    REQUIRE(word(1) == 11 && word(2) == 12);
    OK(cuStreamDestroy(third));

    /* One that is wrong: none is done. */
    clear();
    CUstreamBatchMemOpParams bad[2] = {wait_for(CU_STREAM_MEM_OP_WRITE_VALUE_32, words, 1, 0),
                                       wait_for(CU_STREAM_MEM_OP_WRITE_VALUE_32, words + 1, 1, 0)};
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuStreamBatchMemOp(waiting, 2, bad, 0));
    OK(cuCtxSynchronize());
    REQUIRE(word(0) == 0);
    bad[1] = wait_for(CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES, 0, 0, 0);
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, cuStreamBatchMemOp(waiting, 2, bad, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuStreamBatchMemOp(waiting, 257, bad, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuStreamBatchMemOp(waiting, 1, bad, 1));
}

/* Whoever sees a word of the host's memory sees what stood before it in the stream, and calls nothing for that. */
static void words_of_the_host(void)
{
    unsigned *host, own[WORDS] = {0};
    CUdeviceptr at;
    CUmodule module;
    CUfunction scale;
    unsigned factor = 3;
    OK(cuModuleLoadData(&module, scale_ptx));
    OK(cuModuleGetFunction(&scale, module, "scale"));
    OK(cuMemHostAlloc((void **)&host, 4 * WORDS, CU_MEMHOSTALLOC_DEVICEMAP));
    memset(host, 0, 4 * WORDS);
    OK(cuMemHostGetDevicePointer(&at, host, 0));
    volatile unsigned *flag = host, *copied = host + 8, *computed = host + 32;
    volatile cuuint64_t *large = (volatile cuuint64_t *)(host + 2);

    for (unsigned round = 1; round <= 3; round++) {
        clear();
        CUdeviceptr computes = at + 4 * 32;
        void *parameters[] = {&computes, &factor};
        computed[0] = round;
        OK(cuStreamWaitValue32(waiting, words, 1, CU_STREAM_WAIT_VALUE_EQ));
        OK(cuMemsetD32Async(words + 4, 40 + round, 1, waiting));
        OK(cuMemcpyDtoHAsync((void *)copied, words + 4, 4, waiting));
        OK(cuLaunchKernel(scale, 1, 1, 1, 1, 1, 1, 0, waiting, parameters, NULL));
        CUstreamBatchMemOpParams both[2] = {wait_for(CU_STREAM_MEM_OP_WRITE_VALUE_64, at + 8, (1ull << 40) + round, 0),
                                            wait_for(CU_STREAM_MEM_OP_WRITE_VALUE_32, words + 8, 50 + round, 0)};
        OK(cuStreamBatchMemOp(waiting, 2, both, 0));
        OK(cuStreamWriteValue32(waiting, at, 5 + round, 0));
        EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(waiting));
        REQUIRE(*flag != 5 + round && *large != (1ull << 40) + round);
        OK(cuStreamWriteValue32(writing, words, 1, 0));
        while (*flag != 5 + round) sched_yield();
        REQUIRE(*large == (1ull << 40) + round && *copied == 40 + round && *computed == 3 * round + 5);
        /* What the program writes then stays. */
        *flag = 0;
        OK(cuStreamSynchronize(waiting));
        REQUIRE(*flag == 0 && word(2) == 50 + round);
    }
    /* A null pointer would be written by nobody; so is what lies behind the end. */
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuStreamWriteValue32(waiting, at + (1 << 24), 0, 0));
    OK(cuMemHostRegister(own, sizeof own, CU_MEMHOSTREGISTER_DEVICEMAP));
    OK(cuStreamWriteValue32(writing, (CUdeviceptr)(own + 1), 9, CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER));
    OK(cuMemHostUnregister(own));
    REQUIRE(own[0] == 0 && own[1] == 9 && own[2] == 0);
    OK(cuStreamWriteValue32(writing, at, 6, 0));
    OK(cuMemFreeHost(host));
    OK(cuModuleUnload(module));
}

static void set(void *word)
{
    *(volatile unsigned *)word = 1;
}

/* What the stream does behind its wait sees what the program wrote before the word, and nothing else stands still. */
enum { COUNT = 4096 };

static void waits_for_words_of_the_host(void)
{
    unsigned *host, *more, *registered = aligned_alloc(4096, 4096), found[4] = {0}, factor = 2;
    CUdeviceptr at, registered_at;
    CUmodule module;
    CUfunction scale;
    OK(cuModuleLoadData(&module, scale_ptx));
    OK(cuModuleGetFunction(&scale, module, "scale"));
    OK(cuMemHostAlloc((void **)&host, 4 * (1024 + COUNT), CU_MEMHOSTALLOC_DEVICEMAP));
    memset(host, 0, 4 * (1024 + COUNT));
    memset(registered, 0, 4096);
    OK(cuMemHostGetDevicePointer(&at, host, 0));
    OK(cuMemHostRegister(registered, 4096, CU_MEMHOSTREGISTER_DEVICEMAP));
    OK(cuMemHostGetDevicePointer(&registered_at, registered, 0));
    volatile unsigned *flag = host, *copied = host + 16, *computed = host + 1024;
    volatile cuuint64_t *large = (volatile cuuint64_t *)registered;

    for (unsigned round = 1; round <= 3; round++) {
        clear();
        CUdeviceptr computes = at + 4 * 1024;
        void *parameters[] = {&computes, &factor};
        unsigned others = 0;
        OK(cuStreamWaitValue32(waiting, at, round, CU_STREAM_WAIT_VALUE_EQ));
        OK(cuLaunchKernel(scale, COUNT / 64, 1, 1, 64, 1, 1, 0, waiting, parameters, NULL));
        OK(cuMemcpyHtoDAsync(words, (void *)copied, 16, waiting));
        OK(cuStreamWaitValue64(waiting, registered_at + 8, round, CU_STREAM_WAIT_VALUE_GEQ));
        OK(cuMemcpyHtoDAsync(words + 16, (void *)registered, 4, waiting));

        /* Another stream and its host functions go on, and memory can be mapped. */
        OK(cuMemsetD32Async(words + 4 * 40, round, 1, writing));
        OK(cuLaunchHostFunc(writing, set, &others));
        OK(cuStreamSynchronize(writing));
        REQUIRE(others == 1 && word(40) == round);
        OK(cuMemHostAlloc((void **)&more, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
        EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(waiting));

        /* Every second word: many separate changes. */
        for (unsigned i = 0; i < COUNT; i += 2) computed[i] = round + i;
        for (unsigned i = 0; i < 4; i++) copied[i] = 10 * round + i;
        __sync_synchronize();
        *flag = round;
        EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(waiting));
        registered[0] = 70 + round;
        __sync_synchronize();
        large[1] = round;
        OK(cuStreamSynchronize(waiting));
        OK(cuMemcpyDtoH(found, words, 16));
        for (unsigned i = 0; i < 4; i++) REQUIRE(found[i] == 10 * round + i);
        for (unsigned i = 0; i < COUNT; i += 2) REQUIRE(computed[i] == 2 * (round + i) + 5);
        REQUIRE(word(4) == 70 + round);
        OK(cuMemFreeHost(more));
    }

    /* In a batch, and met before the stream gets there. */
    *flag = 9;
    CUstreamBatchMemOpParams both[2] = {wait_for(CU_STREAM_MEM_OP_WAIT_VALUE_32, at, 8, CU_STREAM_WAIT_VALUE_GEQ),
                                        wait_for(CU_STREAM_MEM_OP_WRITE_VALUE_32, words, 33, 0)};
    OK(cuStreamBatchMemOp(waiting, 2, both, 0));
    OK(cuStreamSynchronize(waiting));
    REQUIRE(word(0) == 33);
    OK(cuMemHostUnregister(registered));
    OK(cuMemFreeHost(host));
    OK(cuModuleUnload(module));
    free(registered);
}

/* What a thread of the program's own finds when the context is idle: whether the word was written by then. */
static CUcontext context;
static volatile unsigned *the_word;
static volatile int is_waiting;

static void *wait_for_the_context(void *unused)
{
    (void)unused;
    OK(cuCtxSetCurrent(context));
    is_waiting = 1;
    OK(cuCtxSynchronize());
    REQUIRE(*the_word == 1);
    return NULL;
}

static void until(void *set)
{
    while (!*(volatile int *)set) sched_yield();
}

/* Other streams, and calls that wait for nothing, go on while a stream waits for what the program does next: a word of
 * page-locked memory, a word of device memory, a host function that has not returned. */
enum { OF_THE_HOST, OF_THE_DEVICE, HOST_FUNCTION, WAYS };

static void change(volatile unsigned *data)
{
    for (unsigned i = 0; i < COUNT; i += 2) data[i]++;
}

static void others_go_on(void)
{
    unsigned *host, *data, found, factor = 2;
    CUdeviceptr at, data_at, pooled;
    CUmodule module;
    CUfunction scale;
    CUevent before, behind, other;
    CUgraph graph;
    CUgraphExec executable;
    pthread_t thread;
    OK(cuCtxGetCurrent(&context));
    OK(cuModuleLoadData(&module, scale_ptx));
    OK(cuModuleGetFunction(&scale, module, "scale"));
    OK(cuMemHostAlloc((void **)&host, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
    OK(cuMemHostAlloc((void **)&data, 4 * COUNT, CU_MEMHOSTALLOC_DEVICEMAP));
    OK(cuMemHostGetDevicePointer(&at, host, 0));
    OK(cuMemHostGetDevicePointer(&data_at, data, 0));
    OK(cuEventCreate(&before, CU_EVENT_DISABLE_TIMING));
    OK(cuEventCreate(&behind, CU_EVENT_DISABLE_TIMING));
    OK(cuEventCreate(&other, CU_EVENT_DISABLE_TIMING));
    OK(cuStreamBeginCapture(writing, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuMemsetD32Async(words + 4 * 20, 77, 1, writing));
    OK(cuStreamEndCapture(writing, &graph));
    OK(cuGraphInstantiate(&executable, graph, 0));
    void *parameters[] = {&data_at, &factor};
    the_word = host;

    for (int way = 0; way < WAYS; way++) {
        volatile int go = 0;
        memset(host, 0, 4096);
        memset(data, 0, 4 * COUNT);
        clear();
        /* As often as it will be called below, so that kernel and memory are there. */
        OK(cuLaunchKernel(scale, COUNT / 64, 1, 1, 64, 1, 1, 0, writing, parameters, NULL));
        OK(cuMemAllocAsync(&pooled, 4, writing));
        OK(cuMemFreeAsync(pooled, writing));
        OK(cuCtxSynchronize());
        OK(cuEventRecord(before, waiting));
        if (way == OF_THE_HOST) OK(cuStreamWaitValue32(waiting, at, 1, CU_STREAM_WAIT_VALUE_EQ));
        if (way == OF_THE_DEVICE) OK(cuStreamWaitValue32(waiting, words, 1, CU_STREAM_WAIT_VALUE_EQ));
        if (way == HOST_FUNCTION) OK(cuLaunchHostFunc(waiting, until, (void *)&go));
        change(data);
        OK(cuMemsetD32Async(words + 4 * 9, 7, 1, waiting));
        OK(cuEventRecord(behind, waiting));

        change(data);
        EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(waiting));
        change(data);
        EXPECT(CUDA_ERROR_NOT_READY, cuEventQuery(behind));
        OK(cuEventSynchronize(before));
        change(data);
        OK(cuMemsetD32Async(words + 4 * 10, 8, 1, writing));
        OK(cuEventRecord(other, writing));
        OK(cuEventSynchronize(other));
        change(data);
        OK(cuStreamSynchronize(writing));
        change(data);
        REQUIRE(word(10) == 8 && word(9) == 0);
        change(data);
        found = 60 + way;
        OK(cuMemcpyHtoD(words + 4 * 11, &found, 4));
        change(data);
        OK(cuMemcpyDtoHAsync(&found, words + 4 * 11, 4, writing));
        OK(cuStreamSynchronize(writing));
        REQUIRE(found == 60u + way);
        change(data);
        OK(cuMemsetD32(words + 4 * 12, 9, 1));
        REQUIRE(word(12) == 9);
        change(data);
        OK(cuMemAllocAsync(&pooled, 4, writing));
        OK(cuMemFreeAsync(pooled, writing));
        change(data);
        OK(cuGraphLaunch(executable, writing));
        change(data);
        /* The kernel sees all that was written before it was launched. */
        for (unsigned i = 0; i < COUNT; i++) data[i] = i;
        for (unsigned i = 0; i < COUNT; i += 2) data[i] = 3 * i;
        OK(cuLaunchKernel(scale, COUNT / 64, 1, 1, 64, 1, 1, 0, writing, parameters, NULL));
        OK(cuStreamSynchronize(writing));
        REQUIRE(word(20) == 77);
        for (unsigned i = 0; i < COUNT; i++) REQUIRE(data[i] == 2 * (i % 2 ? i : 3 * i) + 5);
        EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(waiting));

        /* Who waits for the context waits for the stream. */
        is_waiting = 0;
        REQUIRE(pthread_create(&thread, NULL, wait_for_the_context, NULL) == 0);
        while (!is_waiting) sched_yield();
        change(data);
        OK(cuMemsetD32Async(words + 4 * 10, 10, 1, writing));
        OK(cuStreamSynchronize(writing));
        EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(waiting));
        change(data);
        *the_word = 1;
        go = 1;
        if (way == OF_THE_DEVICE) OK(cuStreamWriteValue32(writing, words, 1, 0));
        REQUIRE(pthread_join(thread, NULL) == 0);
        OK(cuStreamQuery(waiting));
        REQUIRE(word(9) == 7);
    }
    OK(cuGraphExecDestroy(executable));
    OK(cuGraphDestroy(graph));
    OK(cuEventDestroy(before));
    OK(cuEventDestroy(behind));
    OK(cuEventDestroy(other));
    OK(cuMemFreeHost(host));
    OK(cuMemFreeHost(data));
    OK(cuModuleUnload(module));
}

static void mistakes(void)
{
    CUdeviceptr managed;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuStreamWaitValue32(waiting, words + 2, 0, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuStreamWriteValue64(waiting, words + 4, 0, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuStreamWriteValue32(waiting, words, 0, 2));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuStreamWriteValue32(waiting, 0, 0, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuStreamWriteValue32(waiting, words + (1 << 20), 0, 0));
    REQUIRE(attribute(CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES) == 0);
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, cuStreamWaitValue32(waiting, words, 0, CU_STREAM_WAIT_VALUE_FLUSH));
    OK(cuMemAllocManaged(&managed, 64, CU_MEM_ATTACH_GLOBAL));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuStreamWriteValue32(waiting, managed, 0, 0));
    OK(cuMemFree(managed));
}

int main(void)
{
    start();
    OK(cuMemAlloc(&words, 4 * WORDS));
    OK(cuStreamCreate(&waiting, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&writing, CU_STREAM_NON_BLOCKING));
    released_by_a_write();
    conditions();
    batches();
    words_of_the_host();
    waits_for_words_of_the_host();
    others_go_on();
    mistakes();
    OK(cuStreamDestroy(waiting));
    OK(cuStreamDestroy(writing));
    OK(cuMemFree(words));
    return passed();
}
