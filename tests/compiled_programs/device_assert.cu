// A failed assertion ends the kernel with error 710, which then sticks to the context.
#include "check.h"
#include <assert.h>

__global__ void checked(int limit) { assert((int)threadIdx.x < limit); }

int main()
{
    checked<<<1, 4>>>(4);
    OK(cudaDeviceSynchronize());
    checked<<<1, 4>>>(3);
    EXPECT(cudaErrorAssert, cudaDeviceSynchronize());
    EXPECT(cudaErrorAssert, cudaDeviceSynchronize());
    void *memory;
    EXPECT(cudaErrorAssert, cudaMalloc(&memory, 16));
    return passed();
}
