// What a device says about itself fits together, and its memory is counted.
#include "check.h"
#include <string.h>

__global__ void plain(int *out) { out[threadIdx.x] = threadIdx.x; }

__global__ void __launch_bounds__(256, 2) bounded(int *out)
{
    __shared__ int words[1024];
    words[threadIdx.x] = out[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = words[blockDim.x - 1 - threadIdx.x];
}

static int attribute(cudaDeviceAttr which)
{
    int value = -1;
    OK(cudaDeviceGetAttribute(&value, which, 0));
    return value;
}

int main()
{
    int devices, driver, runtime;
    OK(cudaGetDeviceCount(&devices));
    REQUIRE(devices >= 1);
    EXPECT(cudaErrorInvalidDevice, cudaSetDevice(devices));
    OK(cudaDriverGetVersion(&driver));
    OK(cudaRuntimeGetVersion(&runtime));
    REQUIRE(driver / 1000 >= runtime / 1000);

    cudaDeviceProp properties;
    OK(cudaGetDeviceProperties(&properties, 0));
    REQUIRE(strlen(properties.name) > 0);
    REQUIRE(properties.warpSize == 32 && properties.maxThreadsPerBlock == 1024);
    REQUIRE(properties.major == attribute(cudaDevAttrComputeCapabilityMajor));
    REQUIRE(properties.minor == attribute(cudaDevAttrComputeCapabilityMinor));
    REQUIRE(properties.multiProcessorCount == attribute(cudaDevAttrMultiProcessorCount) && properties.multiProcessorCount > 0);
    REQUIRE(properties.sharedMemPerBlock == 48 * 1024 && properties.sharedMemPerBlockOptin >= properties.sharedMemPerBlock);
    REQUIRE(properties.maxGridSize[0] == 2147483647 && properties.maxGridSize[1] == 65535);
    REQUIRE(properties.unifiedAddressing == 1);
    char bus[32];
    int found = -1;
    OK(cudaDeviceGetPCIBusId(bus, sizeof bus, 0));
    OK(cudaDeviceGetByPCIBusId(&found, bus));
    REQUIRE(found == 0);
    char expected[32];
    snprintf(expected, sizeof expected, "%04X:%02X:%02X.0", properties.pciDomainID, properties.pciBusID, properties.pciDeviceID);
    REQUIRE(strcasecmp(bus, expected) == 0);

    // Memory.
    size_t free_before, free_after, total;
    OK(cudaMemGetInfo(&free_before, &total));
    REQUIRE(total == properties.totalGlobalMem && free_before <= total);
    const size_t bytes = 64 << 20;
    int *memory;
    OK(cudaMalloc(&memory, bytes));
    REQUIRE((size_t)memory % 256 == 0);
    OK(cudaMemGetInfo(&free_after, &total));
    REQUIRE(free_before - free_after >= bytes && free_before - free_after < 2 * bytes);
    void *too_much;
    EXPECT(cudaErrorMemoryAllocation, cudaMalloc(&too_much, total + bytes));
    EXPECT(cudaErrorMemoryAllocation, cudaGetLastError());
    OK(cudaGetLastError());

    // Kernels.
    cudaFuncAttributes attributes;
    OK(cudaFuncGetAttributes(&attributes, bounded));
    REQUIRE(attributes.maxThreadsPerBlock == 256 && attributes.sharedSizeBytes == 4096);
    OK(cudaFuncGetAttributes(&attributes, plain));
    REQUIRE(attributes.maxThreadsPerBlock == 1024 && attributes.sharedSizeBytes == 0 && attributes.numRegs > 0);
    int blocks, grid, block;
    OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, plain, 128, 0));
    REQUIRE(blocks >= 1 && blocks <= properties.maxBlocksPerMultiProcessor);
    REQUIRE(blocks * 128 <= properties.maxThreadsPerMultiProcessor);
    OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, plain, 128, properties.sharedMemPerBlock));
    REQUIRE(blocks >= 1 && blocks * properties.sharedMemPerBlock <= properties.sharedMemPerMultiprocessor);
    OK(cudaOccupancyMaxPotentialBlockSize(&grid, &block, bounded, 0, 0));
    REQUIRE(block >= 32 && block <= 256 && block % 32 == 0 && grid >= properties.multiProcessorCount);

    // Launches that cannot be (which code it is depends on the runtime's version).
    plain<<<1, 1025>>>(memory);
    FAILS(cudaGetLastError());
    plain<<<0, 32>>>(memory);
    FAILS(cudaGetLastError());
    bounded<<<1, 512>>>(memory);
    FAILS(cudaGetLastError());
    plain<<<1, 32>>>(memory);
    OK(cudaDeviceSynchronize());

    size_t stack;
    OK(cudaDeviceGetLimit(&stack, cudaLimitStackSize));
    OK(cudaDeviceSetLimit(cudaLimitStackSize, 4096));
    OK(cudaDeviceGetLimit(&stack, cudaLimitStackSize));
    REQUIRE(stack >= 4096);

    OK(cudaFree(memory));
    OK(cudaFree(NULL));
    EXPECT(cudaErrorInvalidValue, cudaFree((void *)0x1234));
    OK(cudaDeviceReset());
    OK(cudaMemGetInfo(&free_after, &total));
    REQUIRE(free_after + bytes > free_before);
    return passed();
}
