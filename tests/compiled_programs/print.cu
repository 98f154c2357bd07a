// Output of kernels appears by the next synchronisation, a line per call.
#include "check.h"

__global__ void greet(double half)
{
    printf("block %d thread %u: %s %5.2f %c %lld %x%%\n", blockIdx.x, threadIdx.x, "text", half * threadIdx.x, 'z',
           -5000000000ll, 0xbeefu);
}

int main()
{
    greet<<<2, 3>>>(0.5);
    OK(cudaDeviceSynchronize());
    fflush(stdout);
    return passed();
}
