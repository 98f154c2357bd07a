// Stream-ordered allocation: memory may be used after its allocation in stream order, and is reused after its free.
#include "check.h"

__global__ void fill(int *data, int n, int value)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) data[i] = value;
}

static unsigned long long pool_value(cudaMemPool_t pool, cudaMemPoolAttr attribute)
{
    unsigned long long value = ~0ull;
    OK(cudaMemPoolGetAttribute(pool, attribute, &value));
    return value;
}

int main()
{
    int supported;
    OK(cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported, 0));
    REQUIRE(supported == 1);
    const int n = 100000;
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    static int host[n];
    for (int round = 0; round < 5; round++) {
        int *data;
        OK(cudaMallocAsync(&data, sizeof host, stream));
        fill<<<(n + 255) / 256, 256, 0, stream>>>(data, n, round);
        OK(cudaMemcpyAsync(host, data, sizeof host, cudaMemcpyDeviceToHost, stream));
        OK(cudaFreeAsync(data, stream));
        OK(cudaStreamSynchronize(stream));
        for (int value : host) REQUIRE(value == round);
    }

    cudaMemPool_t standard;
    OK(cudaDeviceGetDefaultMemPool(&standard, 0));
    REQUIRE(pool_value(standard, cudaMemPoolAttrUsedMemCurrent) == 0);
    REQUIRE(pool_value(standard, cudaMemPoolAttrUsedMemHigh) >= sizeof host);

    cudaMemPoolProps properties = {};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location = {cudaMemLocationTypeDevice, 0};
    cudaMemPool_t own;
    OK(cudaMemPoolCreate(&own, &properties));
    unsigned long long keep = ~0ull;
    OK(cudaMemPoolSetAttribute(own, cudaMemPoolAttrReleaseThreshold, &keep));
    REQUIRE(pool_value(own, cudaMemPoolAttrReleaseThreshold) == keep);
    int *first, *second;
    OK(cudaMallocFromPoolAsync((void **)&first, 1 << 20, own, stream));
    OK(cudaMallocFromPoolAsync((void **)&second, 1 << 20, own, stream));
    REQUIRE(first != second);
    OK(cudaStreamSynchronize(stream));
    REQUIRE(pool_value(own, cudaMemPoolAttrUsedMemCurrent) == 2 << 20);
    REQUIRE(pool_value(own, cudaMemPoolAttrReservedMemCurrent) >= 2 << 20);
    OK(cudaFreeAsync(first, stream));
    OK(cudaFreeAsync(second, stream));
    OK(cudaStreamSynchronize(stream));
    REQUIRE(pool_value(own, cudaMemPoolAttrUsedMemCurrent) == 0);
    OK(cudaMemPoolTrimTo(own, 0));
    REQUIRE(pool_value(own, cudaMemPoolAttrReservedMemCurrent) == 0);
    OK(cudaMemPoolDestroy(own));
    OK(cudaStreamDestroy(stream));
    return passed();
}
