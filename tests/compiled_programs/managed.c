/* Managed memory: one address for program and kernels, also where no parameter shows it; prefetch and advice. */
#include "driver.h"
#include <stdint.h>

/* through: *slot[0] gets 7 added to each word; slot is device memory that holds the address. */
static const char *const through_ptx =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry through(.param .u64 slot)\n"
    "{\n"
    "    .reg .b64 %d<4>;\n    .reg .b32 %r<4>;\n"
    "    ld.param.u64 %d1, [slot];\n    ld.global.u64 %d1, [%d1];\n    mov.u32 %r1, %tid.x;\n"
    "    mul.wide.u32 %d2, %r1, 4;\n    add.s64 %d1, %d1, %d2;\n"
    "    ld.global.u32 %r2, [%d1];\n    add.u32 %r2, %r2, 7;\n    st.global.u32 [%d1], %r2;\n    ret;\n"
    "}\n";

static const CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
static const CUmemLocation host = {.type = CU_MEM_LOCATION_TYPE_HOST, .id = 0};

static CUfunction function(const char *ptx, const char *name)
{
    CUmodule module;
    CUfunction found;
    OK(cuModuleLoadData(&module, ptx));
    OK(cuModuleGetFunction(&found, module, name));
    return found;
}

static void launch(CUfunction kernel, void **parameters)
{
    OK(cuLaunchKernel(kernel, 1, 1, 1, WORDS, 1, 1, 0, NULL, parameters, NULL));
}

static unsigned *allocate(size_t bytes, unsigned flags)
{
    CUdeviceptr address = 0;
    OK(cuMemAllocManaged(&address, bytes, flags));
    return (unsigned *)(uintptr_t)address;
}

static CUdeviceptr at(const void *words)
{
    return (uintptr_t)words;
}

static void host_and_kernels_take_turns(void)
{
    CUfunction scale = function(scale_ptx, "scale"), through = function(through_ptx, "through");
    unsigned *words = allocate(4 * WORDS, CU_MEM_ATTACH_GLOBAL);
    for (unsigned i = 0; i < WORDS; i++) REQUIRE(words[i] == 0);
    count_up(words, 0);
    CUdeviceptr address = at(words);
    unsigned factor = 3;
    void *parameters[] = {&address, &factor};
    launch(scale, parameters);
    OK(cuCtxSynchronize());
    for (unsigned i = 0; i < WORDS; i++) REQUIRE(words[i] == 3 * i + 5);
    count_up(words, 100);
    launch(scale, parameters);
    launch(scale, parameters);
    OK(cuStreamSynchronize(NULL));
    for (unsigned i = 0; i < WORDS; i++) REQUIRE(words[i] == 9 * (100 + i) + 20);

    /* Memory that no launch has named: its address lies in device memory. */
    unsigned *hidden = allocate(4 * WORDS, CU_MEM_ATTACH_HOST);
    CUdeviceptr slot, inside = at(hidden);
    OK(cuMemAlloc(&slot, sizeof inside));
    OK(cuMemcpyHtoD(slot, &inside, sizeof inside));
    count_up(hidden, 0);
    void *only[] = {&slot};
    launch(through, only);
    OK(cuCtxSynchronize());
    for (unsigned i = 0; i < WORDS; i++) REQUIRE(hidden[i] == i + 7);

    /* Copies and fills take it for either side. */
    CUdeviceptr device;
    unsigned back[WORDS];
    OK(cuMemAlloc(&device, 4 * WORDS));
    OK(cuMemcpyHtoD(device, hidden, 4 * WORDS));
    OK(cuMemcpyDtoD(at(words), device, 4 * WORDS));
    REQUIRE(memcmp(words, hidden, 4 * WORDS) == 0);
    OK(cuMemsetD32(at(words), 9, WORDS));
    REQUIRE(words[0] == 9 && words[WORDS - 1] == 9);
    OK(cuMemcpy(at(back), at(words), sizeof back));
    REQUIRE(back[WORDS - 1] == 9);
    OK(cuMemsetD8Async(at(words), 1, 4 * WORDS, NULL));
    OK(cuMemcpyDtoHAsync(back, at(words), sizeof back, NULL));
    OK(cuStreamSynchronize(NULL));
    REQUIRE(back[5] == 0x01010101 && words[5] == 0x01010101);
    OK(cuMemFree(device));
    OK(cuMemFree(slot));
    OK(cuMemFree(at(words)));
    OK(cuMemFree(at(hidden)));
}

static unsigned word(const void *memory, CUpointer_attribute which)
{
    unsigned value = 0xdead;
    OK(cuPointerGetAttribute(&value, which, at(memory)));
    return value;
}

static void what_it_is(void)
{
    REQUIRE(attribute(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY) == 1);
    CUdeviceptr address = 0;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAllocManaged(&address, 64, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAllocManaged(&address, 64, CU_MEM_ATTACH_SINGLE));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAllocManaged(&address, 0, CU_MEM_ATTACH_GLOBAL));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAllocManaged(NULL, 64, CU_MEM_ATTACH_GLOBAL));
    unsigned *words = allocate(10000, CU_MEM_ATTACH_GLOBAL);
    REQUIRE(word(words + 1, CU_POINTER_ATTRIBUTE_IS_MANAGED) % 256 == 1);
    REQUIRE(word(words + 1, CU_POINTER_ATTRIBUTE_MEMORY_TYPE) == CU_MEMORYTYPE_DEVICE);
    REQUIRE(word(words + 1, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) == 0);
    CUdeviceptr seen = 0, start = 0;
    size_t size = 0;
    OK(cuPointerGetAttribute(&seen, CU_POINTER_ATTRIBUTE_HOST_POINTER, at(words + 1)));
    REQUIRE(seen == at(words + 1));
    OK(cuPointerGetAttribute(&seen, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, at(words + 1)));
    REQUIRE(seen == at(words + 1));
    OK(cuMemGetAddressRange(&start, &size, at(words + 8)));
    REQUIRE(start == at(words) && size == 10000);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemHostGetDevicePointer(&seen, words, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(words));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree(at(words + 1)));
    OK(cuMemFree(at(words)));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree(at(words)));
}

static int ranged(const char *from, size_t bytes, CUmem_range_attribute which)
{
    int value = 99;
    OK(cuMemRangeGetAttribute(&value, sizeof value, which, at(from), bytes));
    return value;
}

static void advice_is_remembered(void)
{
    char *bytes = (char *)allocate(1 << 20, CU_MEM_ATTACH_GLOBAL);
    CUdeviceptr all = at(bytes), device;
    size_t size = 1 << 20, half = size / 2;
    OK(cuMemAdvise(all, half, CU_MEM_ADVISE_SET_READ_MOSTLY, here));
    REQUIRE(ranged(bytes, half, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY) == 1);
    REQUIRE(ranged(bytes, size, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY) == 0);
    REQUIRE(ranged(bytes, size, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION) == CU_DEVICE_INVALID);
    OK(cuMemAdvise(all, size, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, host));
    REQUIRE(ranged(bytes, size, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION) == CU_DEVICE_CPU);
    OK(cuMemAdvise(all, size, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, here));
    REQUIRE(ranged(bytes, size, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE) == CU_MEM_LOCATION_TYPE_DEVICE);
    OK(cuMemAdvise(all, size, CU_MEM_ADVISE_SET_ACCESSED_BY, here));
    int devices[3];
    OK(cuMemRangeGetAttribute(devices, sizeof devices, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, all, size));
    REQUIRE(devices[0] == 0 && devices[1] == CU_DEVICE_INVALID && devices[2] == CU_DEVICE_INVALID);

    REQUIRE(ranged(bytes, size, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION) == CU_DEVICE_INVALID);
    memset(bytes, 3, size);
    OK(cuMemPrefetchAsync(all, size, here, 0, NULL));
    REQUIRE(ranged(bytes, size, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION) == 0);
    CUmemLocation places[] = {host, here};
    CUdeviceptr parts[] = {all, all + half};
    size_t sizes[] = {half, half}, firsts[] = {0, 1};
    OK(cuMemPrefetchBatchAsync(parts, sizes, 2, places, firsts, 2, 0, CU_STREAM_LEGACY));
    REQUIRE(ranged(bytes, half, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION) == CU_DEVICE_CPU);
    REQUIRE(ranged(bytes + half, half, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION) == 0);
    OK(cuMemDiscardAndPrefetchBatchAsync(parts, sizes, 1, places + 1, firsts, 1, 0, CU_STREAM_LEGACY));
    REQUIRE(ranged(bytes, size, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION) == 0);
    OK(cuMemDiscardBatchAsync(parts, sizes, 1, 0, CU_STREAM_LEGACY));
    OK(cuCtxSynchronize());
    REQUIRE(bytes[half] == 3 && bytes[size - 1] == 3);

    int one = 99, two = 99;
    void *answers[] = {&one, &two};
    size_t widths[] = {sizeof one, sizeof two};
    CUmem_range_attribute asked[] = {CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION};
    OK(cuMemRangeGetAttributes(answers, widths, asked, 2, all, half));
    REQUIRE(one == 1 && two == 0);

    OK(cuStreamAttachMemAsync(CU_STREAM_LEGACY, all, 0, CU_MEM_ATTACH_HOST));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuStreamAttachMemAsync(CU_STREAM_LEGACY, all, half, CU_MEM_ATTACH_GLOBAL));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuStreamAttachMemAsync(CU_STREAM_LEGACY, all, 0, 77));

    /* Ranges that are not managed, or longer than the allocation. */
    OK(cuMemAlloc(&device, 4096));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemPrefetchAsync(device, 4096, here, 0, NULL));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemPrefetchAsync(all, size + 1, here, 0, NULL));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAdvise(device, 4096, CU_MEM_ADVISE_SET_READ_MOSTLY, here));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemDiscardBatchAsync(&device, sizes, 1, 0, CU_STREAM_LEGACY));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemRangeGetAttribute(&one, 2, asked[0], all, half));
    CUmemLocation nowhere = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 99};
    EXPECT(CUDA_ERROR_INVALID_DEVICE, cuMemPrefetchAsync(all, size, nowhere, 0, NULL));
    OK(cuMemFree(device));
    OK(cuMemFree(all));
}

int main(void)
{
    start();
    host_and_kernels_take_turns();
    what_it_is();
    advice_is_remembered();
    return passed();
}
