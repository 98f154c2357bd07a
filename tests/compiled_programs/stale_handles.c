/* Handles that were freed, or never were, get the code of their kind; nothing else is disturbed. */
#include "check.h"
#include <cuda.h>

int main(void)
{
    CUcontext context;
    CUstream stream;
    CUevent event;
    CUdeviceptr memory;
    CUmemoryPool pool;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuMemAlloc(&memory, 1024));

    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamDestroy(stream));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuStreamDestroy(NULL));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuStreamCreate(&stream, 99));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuStreamCreate(NULL, 0));

    OK(cuEventCreate(&event, 0));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuEventDestroy(NULL));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuEventRecord(NULL, NULL));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuEventQuery(NULL));
    float milliseconds;
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&milliseconds, event, event));
    OK(cuEventDestroy(event));

    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    FAILS(cuModuleUnload(NULL));
    FAILS(cuLibraryUnload(NULL));

    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoD(memory, 0x10, 16));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemsetD8(0x10, 0, 16));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemsetD8(memory, 0, 1 << 30));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree(memory + 16));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(&memory));

    CUmemPoolProps bad = {0};
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemPoolCreate(&pool, &bad));
    int value;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuDeviceGetAttribute(&value, 9999, 0));
    EXPECT(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 77));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)&value));

    unsigned word = 0;
    OK(cuMemsetD32(memory, 77, 4));
    OK(cuMemcpyDtoH(&word, memory + 12, 4));
    REQUIRE(word == 77);
    OK(cuDevicePrimaryCtxRelease(0));
    return passed();
}
