// Variables that host and kernels name alike: initial values, neighbours in one page, several pages, pointers to them.
#include "check.h"

__managed__ int counter[4];
__managed__ int primes[5] = {2, 3, 5, 7, 11};
__managed__ float table[3000];
__managed__ float *chosen;
__device__ int offset = 100;

__global__ void count()
{
    counter[threadIdx.x] += primes[threadIdx.x] + offset;
}

__global__ void fill(int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) table[i] = table[i] * 2 + i;
    if (i == 0) primes[4] = 13;
}

__global__ void through()
{
    chosen[threadIdx.x] += 1;
}

int main()
{
    REQUIRE(primes[0] == 2 && primes[4] == 11 && counter[3] == 0);
    counter[1] = 4;
    count<<<1, 4>>>();
    OK(cudaDeviceSynchronize());
    REQUIRE(counter[0] == 102 && counter[1] == 107 && counter[2] == 105 && counter[3] == 107);

    for (int i = 0; i < 3000; i++) table[i] = 1;
    primes[0] = 4;
    for (int round = 0; round < 2; round++) fill<<<12, 256>>>(3000);
    count<<<1, 4>>>();
    OK(cudaDeviceSynchronize());
    for (int i = 0; i < 3000; i++) REQUIRE(table[i] == 4 + 3 * i);
    REQUIRE(primes[4] == 13 && primes[1] == 3 && counter[0] == 102 + 104);

    chosen = table + 2000;
    through<<<1, 32>>>();
    OK(cudaDeviceSynchronize());
    REQUIRE(table[2000] == 6005 && table[2031] == 6098 && table[2032] == 6100);

    cudaPointerAttributes of;
    OK(cudaPointerGetAttributes(&of, &table[7]));
    REQUIRE(of.type == cudaMemoryTypeManaged && of.devicePointer == &table[7] && of.hostPointer == &table[7]);
    void *address = nullptr;
    OK(cudaGetSymbolAddress(&address, table));
    REQUIRE(address == table);
    float back[2];
    OK(cudaMemcpy(back, table + 1, sizeof back, cudaMemcpyDefault));
    REQUIRE(back[0] == 7 && back[1] == 10);
    OK(cudaMemset(table, 0, 8));
    OK(cudaDeviceSynchronize());
    REQUIRE(table[0] == 0 && table[1] == 0 && table[2] == 10);
    FAILS(cudaFree(table));
    return passed();
}
