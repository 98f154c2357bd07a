// Host functions run in stream order, see what came before them and hold what comes after.
#include "check.h"
#include <pthread.h>
#include <unistd.h>

__global__ void increment(int *value) { ++*value; }

static pthread_t caller;
static int *pinned;  // the device's value, copied before each callback
static int seen[3], calls;
static int status_seen = -1;

static void host_function(void *data)
{
    REQUIRE(!pthread_equal(pthread_self(), caller));
    usleep(2000);  // a hurry would hide a missing order
    seen[calls++] = *pinned + 100 * *(int *)data;
    *pinned = -1;  // copied to the device by what follows
}

static void CUDART_CB callback(cudaStream_t, cudaError_t status, void *data)
{
    status_seen = status;
    *(int *)data = 5;
}

int main()
{
    caller = pthread_self();
    cudaStream_t stream;
    int *device, after = 0, numbers[3] = {1, 2, 3};
    OK(cudaStreamCreate(&stream));
    OK(cudaMalloc(&device, sizeof *device));
    OK(cudaMallocHost(&pinned, sizeof *pinned));
    OK(cudaMemsetAsync(device, 0, sizeof *device, stream));
    for (int i = 0; i < 3; i++) {
        increment<<<1, 1, 0, stream>>>(device);
        OK(cudaMemcpyAsync(pinned, device, sizeof *pinned, cudaMemcpyDeviceToHost, stream));
        OK(cudaLaunchHostFunc(stream, host_function, &numbers[i]));
        OK(cudaMemcpyAsync(device, pinned, sizeof *pinned, cudaMemcpyHostToDevice, stream));
    }
    OK(cudaStreamAddCallback(stream, callback, &after, 0));
    OK(cudaStreamSynchronize(stream));
    REQUIRE(calls == 3);
    REQUIRE(seen[0] == 101);  // 0 + 1
    REQUIRE(seen[1] == 200);  // -1 + 1
    REQUIRE(seen[2] == 300);
    REQUIRE(status_seen == cudaSuccess && after == 5);
    return passed();
}
