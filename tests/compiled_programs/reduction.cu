// Shared memory, shuffles, votes and atomics, against sums known in closed form.
#include "check.h"

__global__ void block_sums(const int *in, int n, unsigned long long *total, int *largest)
{
    extern __shared__ int partial[];
    int sum = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += in[i];
    for (int offset = warpSize / 2; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffffu, sum, offset);
    if (threadIdx.x % warpSize == 0) partial[threadIdx.x / warpSize] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (unsigned w = 1; w < blockDim.x / warpSize; w++) sum += partial[w];
        atomicAdd(total, (unsigned long long)sum);
        atomicMax(largest, (int)blockIdx.x);
    }
}

__global__ void count_even(const int *in, int n, unsigned *count)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned even = __ballot_sync(0xffffffffu, i < n && in[i] % 2 == 0);
    if (threadIdx.x % warpSize == 0) atomicAdd(count, __popc(even));
}

__global__ void big_shared(int *out)
{
    extern __shared__ int words[];
    int last = 60 * 1024 / 4 - 1;
    if (threadIdx.x == 0) words[last] = 42;
    __syncthreads();
    out[threadIdx.x] = words[last];
}

int main()
{
    const int n = 50000;
    int *in, *largest;
    unsigned long long *total;
    unsigned *even;
    static int host[n];
    for (int i = 0; i < n; i++) host[i] = i;
    OK(cudaMalloc(&in, sizeof host));
    OK(cudaMalloc(&total, sizeof *total));
    OK(cudaMalloc(&largest, sizeof *largest));
    OK(cudaMalloc(&even, sizeof *even));
    OK(cudaMemcpy(in, host, sizeof host, cudaMemcpyHostToDevice));
    OK(cudaMemset(total, 0, sizeof *total));
    OK(cudaMemset(largest, 0xff, sizeof *largest));  // -1
    OK(cudaMemset(even, 0, sizeof *even));

    block_sums<<<24, 128, 4 * sizeof(int)>>>(in, n, total, largest);
    count_even<<<(n + 127) / 128, 128>>>(in, n, even);
    unsigned long long sum;
    int block;
    unsigned evens;
    OK(cudaMemcpy(&sum, total, sizeof sum, cudaMemcpyDeviceToHost));
    OK(cudaMemcpy(&block, largest, sizeof block, cudaMemcpyDeviceToHost));
    OK(cudaMemcpy(&evens, even, sizeof evens, cudaMemcpyDeviceToHost));
    REQUIRE(sum == (unsigned long long)n * (n - 1) / 2);
    REQUIRE(block == 23);
    REQUIRE(evens == n / 2);

    // More than 48 KB per block has to be asked for.
    big_shared<<<1, 32, 60 * 1024>>>(in);
    EXPECT(cudaErrorInvalidValue, cudaGetLastError());
    OK(cudaFuncSetAttribute(big_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, 60 * 1024));
    big_shared<<<1, 32, 60 * 1024>>>(in);
    OK(cudaMemcpy(host, in, 32 * sizeof(int), cudaMemcpyDeviceToHost));
    for (int i = 0; i < 32; i++) REQUIRE(host[i] == 42);
    return passed();
}
