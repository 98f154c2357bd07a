// Compiled with --default-stream per-thread: each host thread has a default stream of its own.
#include "check.h"
#include <atomic>
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

static void wait_for_flag(void *flag)
{
    while (!*(std::atomic<bool> *)flag) std::this_thread::yield();
}

int main()
{
    // This thread's stream is held; another thread's is not.
    std::atomic<bool> flag(false);
    int *data, *host;
    OK(cudaMalloc(&data, sizeof *data));
    OK(cudaMallocHost(&host, sizeof *host));
    OK(cudaMemset(data, 0, sizeof *data));
    OK(cudaStreamSynchronize(0)); // a fill may go on behind its call
    OK(cudaLaunchHostFunc(0, wait_for_flag, &flag));
    std::thread([=] {
        fill<<<1, 1>>>(data, 1, 5);
        OK(cudaMemcpyAsync(host, data, sizeof *host, cudaMemcpyDeviceToHost));
        OK(cudaStreamSynchronize(0));
        REQUIRE(*host == 5);
    }).join();
    EXPECT(cudaErrorNotReady, cudaStreamQuery(0));
    flag = true;
    OK(cudaStreamSynchronize(0));

    std::vector<std::thread> threads;
    for (int id = 0; id < 8; id++) threads.emplace_back(work, id * 1000);
    for (std::thread &thread : threads) thread.join();
    OK(cudaDeviceSynchronize());
    return passed();
}
