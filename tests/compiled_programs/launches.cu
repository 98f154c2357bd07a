// Launches that ask for more than a grid: shared memory up to what the device has, launch attributes, priorities, and
// the runtime's other ways to start a kernel.
#include "check.h"

// Every thread leaves a word at each `stride`, all are read back in another order: all of the memory is there.
__global__ void fill_shared(unsigned *sum, int words)
{
    extern __shared__ unsigned memory[];
    for (int i = threadIdx.x; i < words; i += blockDim.x) memory[i] = i + blockIdx.x;
    __syncthreads();
    unsigned mine = 0;
    for (int i = threadIdx.x; i < words; i += blockDim.x) mine += memory[words - 1 - i];
    atomicAdd(sum, mine);
}

__global__ void shape(int *out)
{
    bool last = blockIdx.x == gridDim.x - 1 && blockIdx.y == gridDim.y - 1 && blockIdx.z == gridDim.z - 1 &&
                threadIdx.x == blockDim.x - 1 && threadIdx.y == blockDim.y - 1 && threadIdx.z == blockDim.z - 1;
    if (!last) return;
    int dimensions[] = {(int)gridDim.x, (int)gridDim.y, (int)gridDim.z, (int)blockDim.x, (int)blockDim.y, (int)blockDim.z};
    for (int i = 0; i < 6; i++) out[i] = dimensions[i];
}

static unsigned *sum;

static void check_shared(int bytes)
{
    unsigned words = bytes / 4, result, blocks = 3;
    OK(cudaMemset(sum, 0, sizeof *sum));
    fill_shared<<<blocks, 128, bytes>>>(sum, words);
    OK(cudaGetLastError());
    OK(cudaMemcpy(&result, sum, sizeof result, cudaMemcpyDeviceToHost));
    REQUIRE(result == blocks * (words * (words - 1) / 2) + words * (0 + 1 + 2));
}

int main()
{
    int plain, most;
    OK(cudaMalloc(&sum, 64));
    OK(cudaDeviceGetAttribute(&plain, cudaDevAttrMaxSharedMemoryPerBlock, 0));
    OK(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
    REQUIRE(plain == 48 * 1024 && most > plain);
    check_shared(plain);
    fill_shared<<<1, 128, plain + 4096>>>(sum, plain / 4); // only after asking for it
    EXPECT(cudaErrorInvalidValue, cudaGetLastError());
    OK(cudaFuncSetAttribute(fill_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, most));
    check_shared(most);
    cudaFuncAttributes attributes;
    OK(cudaFuncGetAttributes(&attributes, fill_shared));
    REQUIRE(attributes.maxDynamicSharedSizeBytes == most && attributes.sharedSizeBytes == 0);
    EXPECT(cudaErrorInvalidValue, cudaFuncSetAttribute(fill_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, most + 1));
    cudaGetLastError();
    size_t room;
    OK(cudaOccupancyAvailableDynamicSMemPerBlock(&room, fill_shared, 2, 128));
    REQUIRE(room > 0 && room <= (size_t)most);

    // By address and arguments; with attributes; on a stream that is more urgent.
    int *out = (int *)sum, host[6], least, greatest;
    void *arguments[] = {&out};
    OK(cudaLaunchKernel((void *)shape, dim3(2, 3, 4), dim3(5, 6, 7), arguments, 0, 0));
    OK(cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 6; i++) REQUIRE(host[i] == i + 2);
    cudaStream_t urgent;
    OK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    OK(cudaStreamCreateWithPriority(&urgent, cudaStreamNonBlocking, greatest));
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributePriority;
    attribute.val.priority = greatest;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(7, 1, 2);
    config.blockDim = dim3(33, 2, 1);
    config.stream = urgent;
    config.attrs = &attribute;
    config.numAttrs = 1;
    OK(cudaLaunchKernelEx(&config, shape, out));
    OK(cudaStreamSynchronize(urgent));
    OK(cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost));
    const int expected[] = {7, 1, 2, 33, 2, 1};
    for (int i = 0; i < 6; i++) REQUIRE(host[i] == expected[i]);
    OK(cudaStreamDestroy(urgent));
    return passed();
}
