// A wild store is error 700; the context is lost and says so from then on.
#include "check.h"

__global__ void store(int *where) { *where = 1; }

int main()
{
    int *memory, word;
    OK(cudaMalloc(&memory, sizeof word));
    store<<<1, 1>>>((int *)0x10);
    EXPECT(cudaErrorIllegalAddress, cudaDeviceSynchronize());
    EXPECT(cudaErrorIllegalAddress, cudaMemcpy(&word, memory, sizeof word, cudaMemcpyDeviceToHost));
    EXPECT(cudaErrorIllegalAddress, cudaFree(memory));
    EXPECT(cudaErrorIllegalAddress, cudaGetLastError());
    REQUIRE(cudaGetErrorName(cudaErrorIllegalAddress) != NULL);
    return passed();
}
