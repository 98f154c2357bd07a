// Chunks go to the device, through a kernel and back, on streams of their own, from and to pinned memory.
#include "check.h"
#include <string.h>

__global__ void negate(int *data, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) data[i] = -data[i];
}

int main()
{
    const int streams = 4, chunk = 30000, n = streams * chunk;
    int *in, *out, *device;
    OK(cudaHostAlloc(&in, n * sizeof(int), cudaHostAllocDefault));
    OK(cudaMallocHost(&out, n * sizeof(int)));
    OK(cudaMalloc(&device, n * sizeof(int)));
    for (int i = 0; i < n; i++) in[i] = i;
    memset(out, 0x55, n * sizeof(int));

    cudaStream_t stream[streams];
    for (int s = 0; s < streams; s++) OK(cudaStreamCreate(&stream[s]));
    for (int round = 0; round < 3; round++)
        for (int s = 0; s < streams; s++) {
            int *at = device + s * chunk;
            size_t bytes = chunk * sizeof(int);
            OK(cudaMemcpyAsync(at, (round ? out : in) + s * chunk, bytes, cudaMemcpyHostToDevice, stream[s]));
            negate<<<(chunk + 127) / 128, 128, 0, stream[s]>>>(at, chunk);
            OK(cudaMemcpyAsync(out + s * chunk, at, bytes, cudaMemcpyDeviceToHost, stream[s]));
        }
    for (int s = 0; s < streams; s++) OK(cudaStreamSynchronize(stream[s]));
    for (int i = 0; i < n; i++) REQUIRE(out[i] == -i);

    // Pageable source: the call returns when the bytes are taken, so the source may be reused at once.
    int word = 7, copy = 0;
    OK(cudaMemcpyAsync(device, &word, sizeof word, cudaMemcpyHostToDevice, stream[0]));
    word = 8;
    OK(cudaMemcpyAsync(device + 1, device, sizeof word, cudaMemcpyDeviceToDevice, stream[0]));
    OK(cudaMemcpyAsync(&copy, device + 1, sizeof copy, cudaMemcpyDefault, stream[0]));
    OK(cudaStreamSynchronize(stream[0]));
    REQUIRE(copy == 7);

    cudaPointerAttributes attributes;
    OK(cudaPointerGetAttributes(&attributes, in + 5));
    REQUIRE(attributes.type == cudaMemoryTypeHost && attributes.hostPointer == in + 5);
    OK(cudaPointerGetAttributes(&attributes, device + 5));
    REQUIRE(attributes.type == cudaMemoryTypeDevice && attributes.devicePointer == device + 5 && attributes.device == 0);
    OK(cudaPointerGetAttributes(&attributes, &word));
    REQUIRE(attributes.type == cudaMemoryTypeUnregistered);

    static int registered[4096];
    OK(cudaHostRegister(registered, sizeof registered, cudaHostRegisterDefault));
    EXPECT(cudaErrorHostMemoryAlreadyRegistered, cudaHostRegister(registered, sizeof registered, cudaHostRegisterDefault));
    OK(cudaMemsetAsync(device, 1, sizeof registered, stream[1]));
    OK(cudaMemcpyAsync(registered, device, sizeof registered, cudaMemcpyDeviceToHost, stream[1]));
    OK(cudaStreamSynchronize(stream[1]));
    for (int value : registered) REQUIRE(value == 0x01010101);
    OK(cudaHostUnregister(registered));
    EXPECT(cudaErrorHostMemoryNotRegistered, cudaHostUnregister(registered));

    for (int s = 0; s < streams; s++) OK(cudaStreamDestroy(stream[s]));
    OK(cudaFree(device));
    OK(cudaFreeHost(in));
    OK(cudaFreeHost(out));
    return passed();
}
