// Compiled with --default-stream per-thread: each host thread has a default stream of its own.
#include "check.h"
#include <thread>
#include <vector>

__global__ void fill(int *data, int n, int value)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) data[i] += value;
}

static void work(int id)
{
    const int n = 5000;
    std::vector<int> host(n, id);
    int *device;
    OK(cudaMalloc(&device, n * sizeof(int)));
    for (int round = 0; round < 20; round++) {
        OK(cudaMemcpyAsync(device, host.data(), n * sizeof(int), cudaMemcpyHostToDevice));
        for (int k = 0; k < 3; k++) fill<<<(n + 255) / 256, 256>>>(device, n, 1);
        OK(cudaMemcpyAsync(host.data(), device, n * sizeof(int), cudaMemcpyDeviceToHost));
        OK(cudaStreamSynchronize(0));
    }
    for (int value : host) REQUIRE(value == id + 60);
    OK(cudaFree(device));
}

int main()
{
    cudaStream_t legacy;
    OK(cudaStreamCreate(&legacy));
    unsigned long long first, second, other = 0;
    OK(cudaStreamGetId(0, &first));
    OK(cudaStreamGetId(0, &second));
    std::thread([&] { OK(cudaStreamGetId(0, &other)); }).join();
    REQUIRE(first == second && first != other);

    std::vector<std::thread> threads;
    for (int id = 0; id < 8; id++) threads.emplace_back(work, id * 1000);
    for (std::thread &thread : threads) thread.join();
    OK(cudaDeviceSynchronize());
    return passed();
}
