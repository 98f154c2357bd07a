/* Starts the CUDA runtime given as a path, of whatever version, and moves bytes with it. */
#include "check.h"
#include <dlfcn.h>
#include <string.h>

static void *runtime;

static void *find(const char *name)
{
    void *address = dlsym(runtime, name);
    REQUIRE(address != NULL);
    return address;
}

int main(int argc, char **argv)
{
    REQUIRE(argc == 2);
    runtime = dlopen(argv[1], RTLD_NOW);
    if (!runtime) fprintf(stderr, "%s\n", dlerror());
    REQUIRE(runtime != NULL);
    int (*count)(int *) = (int (*)(int *))find("cudaGetDeviceCount");
    int (*allocate)(void **, size_t) = (int (*)(void **, size_t))find("cudaMalloc");
    int (*fill)(void *, int, size_t) = (int (*)(void *, int, size_t))find("cudaMemset");
    int (*copy)(void *, const void *, size_t, int) = (int (*)(void *, const void *, size_t, int))find("cudaMemcpy");
    int devices = 0;
    OK(count(&devices));
    REQUIRE(devices >= 1);
    void *memory;
    unsigned char host[1000], expected[1000];
    memset(expected, 0x5a, sizeof expected);
    OK(allocate(&memory, sizeof host));
    OK(fill(memory, 0x5a, sizeof host));
    OK(copy(host, memory, sizeof host, 2)); /* device to host */
    REQUIRE(memcmp(host, expected, sizeof host) == 0);
    return passed();
}
