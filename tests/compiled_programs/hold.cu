// Holds 100 MiB while a command runs that looks at it from outside.
#include "check.h"

int main(int, char **argv)
{
    void *memory;
    OK(cudaMalloc(&memory, 100 << 20));
    fflush(stdout);
    int status = system(argv[1]);
    OK(cudaFree(memory));
    return status != 0;
}
