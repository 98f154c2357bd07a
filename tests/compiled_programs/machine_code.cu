// Compiled to machine code for one old architecture only: a device that cannot run it says so at the launch, not before.
#include "check.h"

__global__ void store(int *out) { *out = 1; }

int main()
{
    int major, *memory, word;
    OK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    OK(cudaMalloc(&memory, sizeof *memory));
    store<<<1, 1>>>(memory);
    if (major == 7) {
        OK(cudaMemcpy(&word, memory, sizeof word, cudaMemcpyDeviceToHost));
        REQUIRE(word == 1);
        return passed();
    }
    EXPECT(cudaErrorNoKernelImageForDevice, cudaGetLastError());
    OK(cudaMemset(memory, 0, sizeof *memory));
    OK(cudaMemcpy(&word, memory, sizeof word, cudaMemcpyDeviceToHost));
    REQUIRE(word == 0);
    return passed();
}
