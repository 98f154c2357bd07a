// Variables of a module: constants, globals and tables with initial values, written and read from both sides.
#include "check.h"

__constant__ float weights[16];
__constant__ int fixed[4] = {2, 3, 5, 7};
__device__ int counter = 10;
__device__ double table[3];

__global__ void use(float *out)
{
    out[threadIdx.x] = weights[threadIdx.x] * fixed[threadIdx.x % 4];
    atomicAdd(&counter, 1);
    if (threadIdx.x < 3) table[threadIdx.x] = threadIdx.x + 0.5;
}

int main()
{
    float host[16], out[16], *device;
    for (int i = 0; i < 16; i++) host[i] = i;
    OK(cudaMalloc(&device, sizeof out));
    OK(cudaMemcpyToSymbol(weights, host, sizeof host));
    float replaced = 100;
    OK(cudaMemcpyToSymbol(weights, &replaced, sizeof replaced, 15 * sizeof(float)));
    use<<<1, 16>>>(device);
    OK(cudaMemcpy(out, device, sizeof out, cudaMemcpyDeviceToHost));
    const int primes[] = {2, 3, 5, 7};
    for (int i = 0; i < 16; i++) REQUIRE(out[i] == (i == 15 ? 100 : i) * primes[i % 4]);

    int count;
    OK(cudaMemcpyFromSymbol(&count, counter, sizeof count));
    REQUIRE(count == 26);
    double halves[3];
    OK(cudaMemcpyFromSymbol(halves, table, sizeof halves));
    REQUIRE(halves[0] == 0.5 && halves[1] == 1.5 && halves[2] == 2.5);

    void *address;
    size_t size;
    OK(cudaGetSymbolAddress(&address, table));
    OK(cudaGetSymbolSize(&size, table));
    REQUIRE(size == sizeof table);
    double changed = 9;
    OK(cudaMemcpy((double *)address + 1, &changed, sizeof changed, cudaMemcpyHostToDevice));
    OK(cudaMemcpyFromSymbol(halves, table, sizeof halves));
    REQUIRE(halves[1] == 9);
    EXPECT(cudaErrorInvalidValue, cudaMemcpyToSymbol(weights, host, sizeof host, sizeof(float)));
    return passed();
}
