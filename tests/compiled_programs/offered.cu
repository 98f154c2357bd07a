// What a device does not have its attribute says, and the call answers "not supported": programs choose other ways.
#include "check.h"

static void matches(const char *what, cudaDeviceAttr attribute, cudaError_t result)
{
    int offered;
    OK(cudaDeviceGetAttribute(&offered, attribute, 0));
    cudaError_t expected = offered ? cudaSuccess : cudaErrorNotSupported;
    if (result != expected) {
        fprintf(stderr, "%s: attribute %d, call %d\n", what, offered, result);
        exit(1);
    }
    cudaGetLastError();
}

int main()
{
    void *memory = NULL, *plain;
    OK(cudaMalloc(&plain, 1 << 20));
    matches("managed memory", cudaDevAttrManagedMemory, cudaMallocManaged(&memory, 4096));
    if (memory) OK(cudaFree(memory));

    cudaEvent_t event;
    cudaIpcEventHandle_t handle;
    cudaError_t shared = cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventInterprocess);
    if (!shared) shared = cudaIpcGetEventHandle(&handle, event);
    matches("events between processes", cudaDevAttrIpcEventSupport, shared);

    // No attribute tells of this: the call does, and leaves the stream as it was.
    cudaStream_t stream;
    cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusActive;
    cudaIpcMemHandle_t of_memory;
    OK(cudaStreamCreate(&stream));
    cudaMipmappedArray_t levels;
    cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
    EXPECT(cudaErrorNotSupported, cudaMallocMipmappedArray(&levels, &format, make_cudaExtent(8, 8, 0), 2));
    EXPECT(cudaErrorNotSupported, cudaGetLastError());
    matches("memory between processes", cudaDevAttrIpcEventSupport, cudaIpcGetMemHandle(&of_memory, plain));
    cudaGetLastError();
    OK(cudaStreamIsCapturing(stream, &capturing));
    REQUIRE(capturing == cudaStreamCaptureStatusNone);
    OK(cudaMemsetAsync(plain, 0, 1 << 20, stream));
    OK(cudaStreamSynchronize(stream));

    static char host[8192];
    cudaError_t registered = cudaHostRegister(host, sizeof host, cudaHostRegisterDefault);
    matches("registered host memory", cudaDevAttrHostRegisterSupported, registered);
    matches("stream-ordered memory", cudaDevAttrMemoryPoolsSupported, cudaMallocAsync(&memory, 4096, 0));
    return passed();
}
