/* Events that launches record: a launch is a record as cuEventRecord is, of each event that it names. */
#include "driver.h"

static CUfunction scale;
static CUdeviceptr data;

/* Whose blocks have all begun, and which they have all triggered: the earliest that CUDA lets the two be complete. */
static CUresult launch(CUstream stream, CUevent begun, CUevent triggered)
{
    static unsigned factor = 2;
    void *parameters[] = {&data, &factor};
    CUlaunchAttribute attributes[3];
    memset(attributes, 0, sizeof attributes);
    unsigned count = 0;
    if (begun) {
        attributes[count].id = CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT;
        attributes[count++].value.launchCompletionEvent.event = begun;
    }
    attributes[count++].id = CU_LAUNCH_ATTRIBUTE_PRIORITY;
    if (triggered) {
        attributes[count].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT;
        attributes[count].value.programmaticEvent.triggerAtBlockStart = 1;
        attributes[count++].value.programmaticEvent.event = triggered;
    }
    CUlaunchConfig config = {.gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = WORDS, .blockDimY = 1,
                             .blockDimZ = 1, .hStream = stream, .attrs = attributes, .numAttrs = count};
    return cuLaunchKernelEx(&config, scale, parameters, NULL);
}

static unsigned first_word(void)
{
    unsigned word;
    OK(cuMemcpyDtoH(&word, data, sizeof word));
    return word;
}

static volatile int gate;

static void CUDA_CB wait_at_gate(void *nothing)
{
    (void)nothing;
    while (!gate) {}
}

/* A stream that is held: what is launched in it has not begun, and what waits for the launch's event neither. */
static void held(CUevent begun, CUevent triggered)
{
    CUstream first, second;
    CUevent last;
    gate = 0;
    fill(data, 1, WORDS);
    OK(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&last, CU_EVENT_DISABLE_TIMING));
    OK(cuLaunchHostFunc(first, wait_at_gate, NULL));
    OK(cuMemsetD32Async(data, 10, WORDS, first));
    OK(launch(first, begun, triggered));
    OK(cuEventRecord(last, first));
    EXPECT(CUDA_ERROR_NOT_READY, cuEventQuery(begun));
    EXPECT(CUDA_ERROR_NOT_READY, cuEventQuery(triggered));
    /* After both have been asked for once, and before the stream continues. */
    EXPECT(CUDA_ERROR_NOT_READY, cuEventQuery(begun));
    OK(cuStreamWaitEvent(second, begun, 0));
    OK(cuStreamWaitEvent(second, triggered, 0));
    OK(cuStreamWaitEvent(second, last, 0)); /* on a GPU the kernel may still run */
    OK(cuMemsetD32Async(data + 4 * (WORDS - 1), 77, 1, second));
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(second));
    gate = 1;
    OK(cuEventSynchronize(begun));
    OK(cuEventSynchronize(triggered));
    OK(cuEventQuery(begun));
    OK(cuEventQuery(triggered));
    OK(cuStreamSynchronize(second));
    unsigned words[WORDS];
    OK(cuMemcpyDtoH(words, data, sizeof words));
    for (int i = 0; i < WORDS - 1; i++) REQUIRE(words[i] == 10 * 2 + 5);
    REQUIRE(words[WORDS - 1] == 77);
    OK(cuEventDestroy(last));
    OK(cuStreamDestroy(first));
    OK(cuStreamDestroy(second));
}

/* An event counts its records by all threads; its state is that of the latest. */
static void again_and_again(CUevent event)
{
    CUstream stream, other;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    unsigned expected = 1;
    fill(data, 1, WORDS);
    for (int i = 0; i < 100; i++) {
        OK(launch(stream, i % 2 ? event : NULL, i % 2 ? NULL : event));
        expected = expected * 2 + 5;
        if (i % 10 == 3) OK(cuEventRecord(event, stream));
        if (i % 10 == 5) OK(cuEventSynchronize(event));
        if (i % 10 == 7) while (cuEventQuery(event) == CUDA_ERROR_NOT_READY) {}
    }
    OK(cuStreamSynchronize(stream));
    OK(cuEventQuery(event));
    REQUIRE(first_word() == expected);

    /* An older record, which is complete, does not speak for a newer one. */
    gate = 0;
    OK(cuLaunchHostFunc(other, wait_at_gate, NULL));
    OK(launch(other, event, NULL));
    EXPECT(CUDA_ERROR_NOT_READY, cuEventQuery(event));
    gate = 1;
    OK(cuEventSynchronize(event));
    OK(cuStreamSynchronize(other));
    REQUIRE(first_word() == expected * 2 + 5);

    /* Destroyed while its record is still to come. */
    CUevent brief;
    gate = 0;
    OK(cuEventCreate(&brief, CU_EVENT_DISABLE_TIMING));
    OK(cuLaunchHostFunc(other, wait_at_gate, NULL));
    OK(launch(other, brief, event));
    OK(cuEventDestroy(brief));
    gate = 1;
    OK(cuStreamSynchronize(other));
    REQUIRE(first_word() == (expected * 2 + 5) * 2 + 5);
    OK(cuStreamDestroy(stream));
    OK(cuStreamDestroy(other));
}

static void refusals(CUcontext context, CUevent untimed)
{
    CUevent timed, foreign;
    CUcontext another;
    float milliseconds;
    OK(cuEventCreate(&timed, CU_EVENT_DEFAULT));
    OK(cuCtxCreate(&another, NULL, 0, 0));
    OK(cuEventCreate(&foreign, CU_EVENT_DISABLE_TIMING));
    OK(cuCtxSetCurrent(context));
    fill(data, 3, WORDS);
    FAILS(launch(NULL, timed, NULL));
    FAILS(launch(NULL, NULL, timed));
    FAILS(launch(NULL, foreign, NULL));
    OK(cuCtxSynchronize());
    REQUIRE(first_word() == 3);
    OK(cuEventQuery(timed)); /* never recorded */
    OK(launch(NULL, untimed, NULL));
    OK(cuEventRecord(timed, NULL));
    OK(cuEventSynchronize(timed));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&milliseconds, untimed, timed));
    REQUIRE(first_word() == 3 * 2 + 5);
    OK(cuEventDestroy(timed));
    OK(cuCtxDestroy(another));
}

int main(void)
{
    CUcontext context = start();
    CUmodule module;
    CUevent begun, triggered;
    OK(cuModuleLoadData(&module, scale_ptx));
    OK(cuModuleGetFunction(&scale, module, "scale"));
    OK(cuMemAlloc(&data, 4 * WORDS));
    OK(cuEventCreate(&begun, CU_EVENT_DISABLE_TIMING));
    OK(cuEventCreate(&triggered, CU_EVENT_DISABLE_TIMING));
    held(begun, triggered);
    held(triggered, begun); /* both were asked for, and are told by themselves now */
    again_and_again(begun);
    refusals(context, triggered);
    OK(cuEventDestroy(begun));
    OK(cuEventDestroy(triggered));
    OK(cuMemFree(data));
    OK(cuModuleUnload(module));
    OK(cuDevicePrimaryCtxRelease(0));
    return passed();
}
