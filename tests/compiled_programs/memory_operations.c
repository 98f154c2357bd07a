/* Streams that wait for words of device memory, and write them. */
#include "driver.h"

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
    mistakes();
    OK(cuStreamDestroy(waiting));
    OK(cuStreamDestroy(writing));
    OK(cuMemFree(words));
    return passed();
}
