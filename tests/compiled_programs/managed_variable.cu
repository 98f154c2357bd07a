// A variable that host and kernels name alike, which is not provided: the program is told so, and crashes.
#include "check.h"

__managed__ int counter[4];

__global__ void count() { counter[threadIdx.x] += 3; }

int main()
{
    counter[1] = 4;
    count<<<1, 4>>>();
    OK(cudaDeviceSynchronize());
    REQUIRE(counter[0] == 3 && counter[1] == 7);
    return passed();
}
