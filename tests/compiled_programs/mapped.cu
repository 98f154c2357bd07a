// Pinned memory that kernels read and write in place: their writes are seen after a synchronisation.
#include "check.h"

__global__ void square(const int *in, int *out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = in[i] * in[i];
}

int main()
{
    const int n = 3000;
    int supported, *in, *out, *device_in, *device_out;
    OK(cudaDeviceGetAttribute(&supported, cudaDevAttrCanMapHostMemory, 0));
    if (!supported) {  // remotely, and said by the attribute
        OK(cudaMallocHost(&in, n * sizeof(int)));
        EXPECT(cudaErrorNotSupported, cudaHostGetDevicePointer(&device_in, in, 0));
        return passed();
    }
    OK(cudaHostAlloc(&in, n * sizeof(int), cudaHostAllocMapped));
    OK(cudaHostAlloc(&out, n * sizeof(int), cudaHostAllocMapped));
    OK(cudaHostGetDevicePointer(&device_in, in, 0));
    OK(cudaHostGetDevicePointer(&device_out, out, 0));
    for (int round = 1; round <= 3; round++) {
        for (int i = 0; i < n; i++) in[i] = i * round;
        square<<<(n + 255) / 256, 256>>>(device_in, device_out, n);
        OK(cudaDeviceSynchronize());
        for (int i = 0; i < n; i++) REQUIRE(out[i] == i * round * i * round);
    }
    OK(cudaFreeHost(in));
    OK(cudaFreeHost(out));
    return passed();
}
