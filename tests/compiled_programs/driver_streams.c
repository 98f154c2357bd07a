/* Streams and events: what they are, what waits for what, and the host's functions between the device's work. */
#include "driver.h"

static CUdeviceptr memory;

static void descriptions(CUcontext context)
{
    CUstream plain, urgent;
    CUcontext of_stream = NULL;
    CUgreenCtx green;
    CUdevice device = -1;
    unsigned flags = 99;
    int least, greatest, priority = 99;
    unsigned long long first = 1, second = 1, again = 2;
    OK(cuCtxGetStreamPriorityRange(&least, &greatest));
    OK(cuStreamCreate(&plain, CU_STREAM_DEFAULT));
    OK(cuStreamCreateWithPriority(&urgent, CU_STREAM_NON_BLOCKING, greatest - 100));
    OK(cuStreamGetPriority(urgent, &priority));
    REQUIRE(priority == greatest);
    OK(cuStreamGetPriority(plain, &priority));
    REQUIRE(priority == least);
    OK(cuStreamGetFlags(urgent, &flags));
    REQUIRE(flags == CU_STREAM_NON_BLOCKING);
    OK(cuStreamGetFlags(plain, &flags));
    REQUIRE(flags == CU_STREAM_DEFAULT);
    OK(cuStreamGetId(plain, &first));
    OK(cuStreamGetId(urgent, &second));
    OK(cuStreamGetId(plain, &again));
    REQUIRE(first != second && first == again);
    OK(cuStreamGetDevice(plain, &device));
    REQUIRE(device == 0);
    OK(cuStreamGetCtx(plain, &of_stream));
    REQUIRE(of_stream == context);
    green = (CUgreenCtx)&green;
    OK(cuStreamGetCtx_v2(urgent, &of_stream, &green));
    REQUIRE(of_stream == context && green == NULL);
    green = (CUgreenCtx)&green;
    OK(cuStreamGetGreenCtx(urgent, &green));
    REQUIRE(green == NULL);

    CUstreamAttrValue value;
    memset(&value, 0, sizeof value);
    value.syncPolicy = CU_SYNC_POLICY_YIELD;
    OK(cuStreamSetAttribute(urgent, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
    FAILS(cuStreamSetAttribute(urgent, (CUstreamAttrID)999, &value));
    OK(cuStreamGetAttribute(plain, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
    REQUIRE(value.syncPolicy == CU_SYNC_POLICY_AUTO);
    OK(cuStreamCopyAttributes(plain, urgent));
    OK(cuStreamGetAttribute(plain, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
    REQUIRE(value.syncPolicy == CU_SYNC_POLICY_YIELD);
    OK(cuStreamGetAttribute(urgent, CU_STREAM_ATTRIBUTE_PRIORITY, &value));
    REQUIRE(value.priority == greatest);
    FAILS(cuStreamGetAttribute(urgent, (CUstreamAttrID)999, &value));
    OK(cuStreamDestroy(plain));
    OK(cuStreamDestroy(urgent));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuStreamCreate(&plain, 1000));
}

/* Nothing is being captured into a graph, and libraries ask for it all the time. */
static void capturing(void)
{
    CUstream stream;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    cuuint64_t id;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamIsCapturing(stream, &status));
    REQUIRE(status == CU_STREAM_CAPTURE_STATUS_NONE);
    status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    OK(cuStreamGetCaptureInfo(stream, &status, &id, NULL, NULL, NULL, NULL));
    REQUIRE(status == CU_STREAM_CAPTURE_STATUS_NONE);
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    REQUIRE(mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    REQUIRE(mode == CU_STREAM_CAPTURE_MODE_RELAXED);
    OK(cuStreamDestroy(stream));
}

static void CUDA_CB note(void *place) { ++*(volatile int *)place; }

static void CUDA_CB note_result(CUstream stream, CUresult result, void *place)
{
    (void)stream;
    *(volatile int *)place = result == CUDA_SUCCESS ? 1 : -1;
}

/* The device writes, the host looks, the device writes again: each sees what the one before left. */
static volatile unsigned seen;
static unsigned *copied;

static void CUDA_CB look(void *nothing)
{
    (void)nothing;
    seen = copied[0];
}

static void host_functions(void)
{
    CUstream stream;
    volatile int first = 0, second = 0, called = 0;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemAllocHost((void **)&copied, 4096));
    copied[0] = 0;
    OK(cuMemsetD32Async(memory, 77, 1, stream));
    OK(cuMemcpyDtoHAsync(copied, memory, 4, stream));
    OK(cuLaunchHostFunc(stream, look, NULL));
    OK(cuMemsetD32Async(memory, 78, 1, stream));
    OK(cuLaunchHostFunc_v2(stream, note, (void *)&first, 0));
    OK(cuLaunchHostFunc(stream, note, (void *)&second));
    OK(cuStreamAddCallback(stream, note_result, (void *)&called, 0));
    OK(cuStreamSynchronize(stream));
    REQUIRE(seen == 77 && first == 1 && second == 1 && called == 1);
    OK(cuMemcpyDtoH(copied, memory, 4));
    REQUIRE(copied[0] == 78);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuStreamAddCallback(stream, NULL, NULL, 0));
    OK(cuMemFreeHost(copied));
    OK(cuStreamDestroy(stream));
}

/* A host function that is not let go holds its stream, and what waits for its event. */
static volatile int gate;

static void CUDA_CB wait_at_gate(void *nothing)
{
    (void)nothing;
    while (!gate) {}
}

static void events(void)
{
    CUstream held, other;
    CUevent first, last, untimed;
    float milliseconds = -1;
    unsigned word = 0;
    OK(cuStreamCreate(&held, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&first, CU_EVENT_DEFAULT));
    OK(cuEventCreate(&last, CU_EVENT_BLOCKING_SYNC));
    OK(cuEventCreate(&untimed, CU_EVENT_DISABLE_TIMING));
    OK(cuEventQuery(first)); /* never recorded */
    fill(memory, 1, 1);
    OK(cuEventRecord(first, held));
    OK(cuLaunchHostFunc(held, wait_at_gate, NULL));
    OK(cuMemsetD32Async(memory, 2, 1, held));
    OK(cuEventRecordWithFlags(untimed, held, CU_EVENT_RECORD_DEFAULT));
    OK(cuStreamWaitEvent(other, untimed, CU_EVENT_WAIT_DEFAULT));
    OK(cuMemsetD32Async(memory, 3, 1, other));
    OK(cuEventRecord(last, other));
    EXPECT(CUDA_ERROR_NOT_READY, cuEventQuery(untimed));
    EXPECT(CUDA_ERROR_NOT_READY, cuEventQuery(last));
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(held));
    EXPECT(CUDA_ERROR_NOT_READY, cuEventElapsedTime(&milliseconds, first, last));
    gate = 1;
    OK(cuEventSynchronize(last));
    OK(cuEventQuery(untimed));
    OK(cuStreamQuery(other));
    OK(cuStreamSynchronize(held));
    OK(cuMemcpyDtoH(&word, memory, 4));
    REQUIRE(word == 3);
    OK(cuEventElapsedTime(&milliseconds, first, last));
    REQUIRE(milliseconds >= 0 && milliseconds < 60000);
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&milliseconds, first, untimed));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuEventCreate(&first, 1000));
    OK(cuEventDestroy(first));
    OK(cuEventDestroy(last));
    OK(cuEventDestroy(untimed));
    OK(cuStreamDestroy(held));
    OK(cuStreamDestroy(other));
}

/* Each way to learn that a stream is done, and then what holds it up again: it is no longer done; the
 * others are. */
enum { BY_STREAM, BY_CONTEXT, BY_QUERY, BY_COPY, WAYS };

static void learn(int way, CUstream stream)
{
    unsigned word;
    if (way == BY_STREAM) OK(cuStreamSynchronize(stream));
    if (way == BY_CONTEXT) OK(cuCtxSynchronize());
    while (way == BY_QUERY && cuStreamQuery(stream) == CUDA_ERROR_NOT_READY) {}
    if (way == BY_COPY) {
        OK(cuMemcpyDtoHAsync(&word, memory, 4, stream));
        OK(cuStreamSynchronize(stream));
    }
}

static void held_up_again(void)
{
    CUstream streams[3] = {CU_STREAM_LEGACY};
    CUevent before, behind;
    OK(cuStreamCreate(&streams[1], CU_STREAM_DEFAULT));
    OK(cuStreamCreate(&streams[2], CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&before, CU_EVENT_DISABLE_TIMING));
    OK(cuEventCreate(&behind, CU_EVENT_DISABLE_TIMING));
    for (int way = 0; way < WAYS; way++) {
        for (int held = 0; held < 3; held++) {
            for (int i = 0; i < 3; i++) {
                OK(cuMemsetD32Async(memory, 1, 1, streams[i]));
                OK(cuEventRecord(before, streams[i]));
                learn(way, streams[i]);
                OK(cuEventQuery(before));
                OK(cuStreamQuery(streams[i]));
            }
            gate = 0;
            OK(cuLaunchHostFunc(streams[held], wait_at_gate, NULL));
            OK(cuEventRecord(behind, streams[held]));
            OK(cuEventQuery(before));
            for (int i = 0; i < 3; i++) {
                /* Whether the legacy stream's next work waits for another is not whether its own is done. */
                if (i == 0 && held == 1) continue;
                EXPECT(i == held ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS, cuStreamQuery(streams[i]));
            }
            EXPECT(CUDA_ERROR_NOT_READY, cuEventQuery(behind));
            gate = 1;
            OK(cuEventSynchronize(behind));
            OK(cuEventQuery(behind));
            OK(cuStreamSynchronize(streams[held]));
            OK(cuStreamQuery(streams[held]));
        }
    }
    OK(cuEventDestroy(before));
    OK(cuEventDestroy(behind));
    OK(cuStreamDestroy(streams[1]));
    OK(cuStreamDestroy(streams[2]));
}

int main(void)
{
    CUcontext context = start();
    OK(cuMemAlloc(&memory, 4096));
    descriptions(context);
    capturing();
    host_functions();
    events();
    held_up_again();
    OK(cuMemFree(memory));
    OK(cuDevicePrimaryCtxRelease(0));
    return passed();
}
