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

    static char host[8192];
    cudaError_t registered = cudaHostRegister(host, sizeof host, cudaHostRegisterDefault);
    matches("registered host memory", cudaDevAttrHostRegisterSupported, registered);
    matches("stream-ordered memory", cudaDevAttrMemoryPoolsSupported, cudaMallocAsync(&memory, 4096, 0));
    return passed();
}
