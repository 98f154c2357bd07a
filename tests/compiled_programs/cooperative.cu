// A cooperative launch: blocks wait for each other in the middle of a kernel.
#include "check.h"

// Every block is resident, which is what a cooperative launch promises: so they may wait for each other.
__device__ void grid_barrier(unsigned *arrived, unsigned target)
{
    __threadfence();
    atomicAdd(arrived, 1);
    while (*(volatile unsigned *)arrived < target) {}
    __threadfence();
}

__global__ void rotate(int *data, unsigned *arrived, int rounds)
{
    int n = gridDim.x, me = blockIdx.x;
    for (int r = 0; r < rounds; r++) {
        int next = *(volatile int *)&data[(me + 1) % n];
        grid_barrier(arrived, (2 * r + 1) * n);
        data[me] = next + 1;
        grid_barrier(arrived, (2 * r + 2) * n);
    }
}

int main()
{
    int offered, blocks = 4, rounds = 10;
    OK(cudaDeviceGetAttribute(&offered, cudaDevAttrCooperativeLaunch, 0));
    int host[4] = {0, 100, 200, 300}, *data;
    unsigned *arrived;
    OK(cudaMalloc(&arrived, sizeof *arrived));
    OK(cudaMemset(arrived, 0, sizeof *arrived));
    OK(cudaMalloc(&data, sizeof host));
    OK(cudaMemcpy(data, host, sizeof host, cudaMemcpyHostToDevice));
    void *arguments[] = {&data, &arrived, &rounds};
    cudaError_t launched = cudaLaunchCooperativeKernel(rotate, blocks, 1, arguments, 0, 0);
    if (!offered) {
        EXPECT(cudaErrorNotSupported, launched);
        return passed();
    }
    OK(launched);
    OK(cudaDeviceSynchronize());
    int out[4];
    OK(cudaMemcpy(out, data, sizeof out, cudaMemcpyDeviceToHost));
    for (int i = 0; i < blocks; i++) REQUIRE(out[i] == host[(i + rounds) % blocks] + rounds);

    int most, processors;
    OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&most, rotate, 1, 0));
    OK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0));
    EXPECT(cudaErrorCooperativeLaunchTooLarge,
           cudaLaunchCooperativeKernel(rotate, most * processors + 1, 1, arguments, 0, 0));
    return passed();
}
