// Several threads of the host use one device: streams of their own, a stream of all, memory from both, and each other's
// events.
#include "check.h"
#include <thread>
#include <vector>

enum { THREADS = 6, ROUNDS = 60, N = 4096 };

__global__ void step(int *data, int n, int by)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) data[i] = data[i] * 3 + by;
}

__global__ void count(unsigned long long *counter) { atomicAdd(counter, 1); }

static cudaStream_t common;
static unsigned long long *counter;
static cudaEvent_t recorded[THREADS];
static int *results[THREADS];

static void work(int me)
{
    cudaStream_t own;
    int *data;
    OK(cudaSetDevice(0));
    OK(cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking));
    OK(cudaMallocAsync(&data, N * sizeof(int), own));
    OK(cudaMemsetAsync(data, 0, N * sizeof(int), own));
    for (int round = 0; round < ROUNDS; round++) {
        step<<<(N + 255) / 256, 256, 0, own>>>(data, N, me + round);
        count<<<1, 32, 0, common>>>(counter);
        OK(cudaGetLastError());
        void *passing;
        OK(cudaMalloc(&passing, 1024 * (me + 1)));
        OK(cudaFree(passing));
    }
    OK(cudaEventRecord(recorded[me], own));
    results[me] = data;
    OK(cudaStreamDestroy(own)); // its work continues
}

int main()
{
    OK(cudaStreamCreate(&common));
    OK(cudaMalloc(&counter, sizeof *counter));
    OK(cudaMemset(counter, 0, sizeof *counter));
    for (cudaEvent_t &event : recorded) OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    std::vector<std::thread> threads;
    for (int t = 0; t < THREADS; t++) threads.emplace_back(work, t);
    for (std::thread &thread : threads) thread.join();

    unsigned long long counted;
    OK(cudaStreamSynchronize(common));
    OK(cudaMemcpy(&counted, counter, sizeof counted, cudaMemcpyDeviceToHost));
    REQUIRE(counted == 32ull * THREADS * ROUNDS);
    static int host[N];
    for (int t = 0; t < THREADS; t++) {
        unsigned expected = 0;
        for (int round = 0; round < ROUNDS; round++) expected = expected * 3 + t + round;
        OK(cudaStreamWaitEvent(common, recorded[t], 0));
        OK(cudaMemcpyAsync(host, results[t], sizeof host, cudaMemcpyDeviceToHost, common));
        OK(cudaStreamSynchronize(common));
        for (int value : host) REQUIRE((unsigned)value == expected);
        OK(cudaFree(results[t]));
    }
    return passed();
}
