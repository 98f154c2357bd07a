/* The forms that functions had in earlier versions of CUDA: programs built then still call them by these names. */
#define __CUDA_API_VERSION_INTERNAL
#include "check.h"
#include <cuda.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

static const char *const ptx = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry nothing() { ret; }\n";

static void one_context(CUresult created, CUcontext *context)
{
    CUcontext current;
    EXPECT(CUDA_SUCCESS, created);
    OK(cuCtxGetCurrent(&current));
    REQUIRE(current == *context);
    OK(cuCtxDestroy_v2(*context));
    OK(cuCtxGetCurrent(&current));
    REQUIRE(current == NULL);
}

/* The last of as many detaches as there were creations and attachments destroys a context, which must be current. */
static void attached(void)
{
    CUcontext context, other;
    FAILS(cuCtxAttach(&other, 0));
    /* More than a session may have at a time. */
    for (int round = 0; round < 100; round++) {
        OK(cuCtxCreate_v2(&context, 0, 0));
        OK(cuCtxDetach(context));
        EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxSynchronize_v2(context));
    }
    OK(cuCtxGetCurrent(&other));
    REQUIRE(other == NULL);
    OK(cuCtxCreate_v2(&context, 0, 0));
    FAILS(cuCtxAttach(&other, 1));
    OK(cuCtxAttach(&other, 0));
    OK(cuCtxAttach(&other, 0));
    REQUIRE(other == context);
    OK(cuCtxDetach(context));
    OK(cuCtxPopCurrent(&other));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxDetach(context));
    OK(cuCtxPushCurrent(context));
    OK(cuCtxDetach(context));
    OK(cuCtxSynchronize());
    OK(cuCtxDetach(context));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxSynchronize_v2(context));
}

static void contexts(void)
{
    CUcontext context, other;
    CUdevice device = -1;
    one_context(cuCtxCreate(&context, 0, 0), &context);
    one_context(cuCtxCreate_v2(&context, 0, 0), &context);
    one_context(cuCtxCreate_v3(&context, NULL, 0, 0, 0), &context);
    OK(cuCtxCreate_v4(&context, NULL, 0, 0));
    OK(cuCtxPopCurrent(&other));
    REQUIRE(other == context);
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxSynchronize());
    OK(cuCtxSynchronize_v2(context));
    OK(cuCtxPushCurrent(context));
    OK(cuCtxSynchronize());
    OK(cuCtxGetDevice(&device));
    REQUIRE(device == 0);
    device = -1;
    OK(cuCtxGetDevice_v2(&device, context));
    REQUIRE(device == 0);
    other = NULL;
    OK(cuCtxAttach(&other, 0));
    REQUIRE(other == context);
    OK(cuCtxDetach(other));
    FAILS(cuCtxDetach(NULL));
    OK(cuCtxSynchronize());
    OK(cuCtxDestroy(context));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxSynchronize_v2(context));
    attached();
}

static void primary(void)
{
    CUcontext context;
    unsigned flags;
    int active = -1;
    OK(cuDevicePrimaryCtxSetFlags(0, CU_CTX_SCHED_YIELD));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    REQUIRE(active == 1 && (flags & CU_CTX_SCHED_MASK) == CU_CTX_SCHED_YIELD);
    OK(cuDevicePrimaryCtxRelease(0));
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    REQUIRE(active == 0);
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    CUdeviceptr memory;
    OK(cuMemAlloc_v2(&memory, 1024));
    OK(cuDevicePrimaryCtxReset(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    FAILS(cuMemFree_v2(memory));
    for (int retained = 0; retained < 2; retained++) cuDevicePrimaryCtxRelease(0);
    OK(cuCtxSetCurrent(NULL));
}

static void devices(void)
{
    CUuuid old, new;
    unsigned short_size;
    size_t size;
    OK(cuDeviceGetUuid(&old, 0));
    OK(cuDeviceGetUuid_v2(&new, 0));
    REQUIRE(memcmp(&old, &new, sizeof old) == 0);
    CUresult (*total_mem)(unsigned *, CUdevice) = (CUresult(*)(unsigned *, CUdevice))cuDeviceTotalMem;
    OK(total_mem(&short_size, 0));
    OK(cuDeviceTotalMem_v2(&size, 0));
    REQUIRE(short_size == (size < 0xffffffff ? size : 0xffffffff));
}

static void streams(void)
{
    CUcontext context, of_stream = NULL;
    CUstream stream;
    CUevent first, last;
    float milliseconds = -1;
    CUstreamCaptureStatus status;
    cuuint64_t id;
    OK(cuCtxCreate_v2(&context, 0, 0));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamGetCtx(stream, &of_stream));
    REQUIRE(of_stream == context);
    status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    OK(cuStreamGetCaptureInfo(stream, &status, &id));
    REQUIRE(status == CU_STREAM_CAPTURE_STATUS_NONE);
    status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    OK(cuStreamGetCaptureInfo_v2(stream, &status, &id, NULL, NULL, NULL));
    REQUIRE(status == CU_STREAM_CAPTURE_STATUS_NONE);
    OK(cuEventCreate(&first, 0));
    OK(cuEventCreate(&last, 0));
    OK(cuEventRecord(first, stream));
    OK(cuEventRecord(last, stream));
    OK(cuEventSynchronize(last));
    OK(cuEventElapsedTime(&milliseconds, first, last));
    REQUIRE(milliseconds >= 0 && milliseconds < 10000);
    OK(cuEventDestroy(first));
    OK(cuEventDestroy(last));
    FAILS(cuEventDestroy(NULL));
    OK(cuStreamDestroy(stream));
    FAILS(cuStreamDestroy(NULL));
    OK(cuCtxDestroy_v2(context));
}

static void batches(void)
{
    CUcontext context;
    CUstream stream;
    CUdeviceptr memory;
    unsigned ones = 1, twos = 2, words[2] = {0, 0};
    OK(cuCtxCreate_v2(&context, 0, 0));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc_v2(&memory, 8));
    CUdeviceptr to[] = {memory, memory + 4}, from[] = {(CUdeviceptr)&ones, (CUdeviceptr)&twos};
    size_t sizes[] = {4, 4}, first = 0, failed = 0;
    CUmemcpyAttributes attributes;
    memset(&attributes, 0, sizeof attributes);
    attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    OK(cuMemcpyBatchAsync(to, from, sizes, 2, &attributes, &first, 1, &failed, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuMemcpyDtoH_v2(words, memory, 8));
    REQUIRE(words[0] == 1 && words[1] == 2);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyBatchAsync(to, from, sizes, 2, &attributes, &first, 1, &failed, NULL));
    REQUIRE(failed == SIZE_MAX);

    CUDA_MEMCPY3D_BATCH_OP boxes[2] = {{.extent = {4, 1, 1}, .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM}};
    boxes[0].src.type = boxes[0].dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    boxes[0].src.op.ptr.ptr = memory + 4;
    boxes[0].dst.op.ptr.ptr = memory;
    boxes[1] = boxes[0];
    boxes[1].extent.width = 0;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpy3DBatchAsync(2, boxes, &failed, 0, stream));
    REQUIRE(failed == 1);
    OK(cuMemcpy3DBatchAsync(1, boxes, &failed, 0, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuMemcpyDtoH_v2(words, memory, 8));
    REQUIRE(words[0] == 2 && words[1] == 2);
    OK(cuStreamDestroy(stream));
    OK(cuCtxDestroy_v2(context));
}

static void managed_memory(void)
{
    CUcontext context;
    CUdeviceptr memory;
    int value = 99;
    OK(cuCtxCreate_v2(&context, 0, 0));
    OK(cuMemAllocManaged(&memory, 4096, CU_MEM_ATTACH_GLOBAL));
    OK(cuMemAdvise(memory, 4096, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, CU_DEVICE_CPU));
    OK(cuMemRangeGetAttribute(&value, 4, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, memory, 4096));
    REQUIRE(value == CU_DEVICE_CPU);
    OK(cuMemPrefetchAsync(memory, 4096, 0, NULL));
    OK(cuMemRangeGetAttribute(&value, 4, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, memory, 4096));
    REQUIRE(value == 0);
    OK(cuMemFree_v2(memory));
    OK(cuCtxDestroy_v2(context));
}

static void linking(void)
{
    char path[] = "/tmp/remotegpu-XXXXXX";
    int file = mkstemp(path);
    REQUIRE(file >= 0 && write(file, ptx, strlen(ptx)) == (ssize_t)strlen(ptx) && close(file) == 0);
    CUcontext context;
    CUlinkState link;
    CUmodule module;
    CUfunction function;
    void *image;
    size_t size;
    OK(cuCtxCreate_v2(&context, 0, 0));
    OK(cuLinkCreate(0, NULL, NULL, &link));
    OK(cuLinkAddFile(link, CU_JIT_INPUT_PTX, path, 0, NULL, NULL));
    OK(cuLinkComplete(link, &image, &size));
    OK(cuModuleLoadData(&module, image));
    OK(cuModuleGetFunction(&function, module, "nothing"));
    OK(cuLinkDestroy(link));
    OK(cuLinkCreate(0, NULL, NULL, &link));
    OK(cuLinkAddData(link, CU_JIT_INPUT_PTX, (void *)ptx, strlen(ptx) + 1, "text", 0, NULL, NULL));
    OK(cuLinkComplete(link, &image, &size));
    OK(cuModuleLoadData(&module, image));
    OK(cuModuleGetFunction(&function, module, "nothing"));
    OK(cuLinkDestroy(link));

    static unsigned char page[4096];
    unsigned flags = 0;
    OK(cuMemHostRegister(page, sizeof page, CU_MEMHOSTREGISTER_PORTABLE));
    OK(cuMemHostGetFlags(&flags, page));
    REQUIRE(flags & CU_MEMHOSTREGISTER_PORTABLE);
    OK(cuMemHostUnregister(page));
    OK(cuCtxDestroy_v2(context));
    REQUIRE(unlink(path) == 0);
}

int main(void)
{
    OK(cuInit(0));
    devices();
    contexts();
    primary();
    streams();
    batches();
    managed_memory();
    linking();
    return passed();
}
