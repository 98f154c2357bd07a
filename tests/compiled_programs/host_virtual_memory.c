/* Memory of the host that a program creates and maps itself, alone and beside memory of a device: the host uses it at its
 * address, and so do copies and kernels. */
#include "driver.h"
#include <sys/wait.h>
#include <unistd.h>

static CUdevice_attribute nodes = CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
static size_t piece;
static CUfunction scale;
static CUmemLocation device = {CU_MEM_LOCATION_TYPE_DEVICE, {0}}, host = {CU_MEM_LOCATION_TYPE_HOST, {0}}, node;

static CUmemGenericAllocationHandle created(CUmemLocation where, size_t size)
{
    CUmemAllocationProp wanted = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = where};
    CUmemGenericAllocationHandle handle;
    OK(cuMemCreate(&handle, size, &wanted, 0));
    return handle;
}

static CUdeviceptr reserved(size_t pieces)
{
    CUdeviceptr base;
    OK(cuMemAddressReserve(&base, pieces * piece, 0, 0, 0));
    return base;
}

static unsigned long long granted(CUmemLocation who, CUdeviceptr where)
{
    unsigned long long flags = 99;
    OK(cuMemGetAccess(&flags, &who, where));
    return flags;
}

/* For the device and for the host, as libraries ask for it. */
static void open_to_both(CUdeviceptr base, size_t size)
{
    CUmemAccessDesc both[] = {{device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE}, {node, CU_MEM_ACCESS_FLAGS_PROT_READWRITE}};
    OK(cuMemSetAccess(base, size, both, 2));
}

static void mapped(CUdeviceptr base, size_t size, CUmemGenericAllocationHandle handle)
{
    OK(cuMemMap(base, size, 0, handle, 0));
    open_to_both(base, size);
}

static void launch(CUdeviceptr words, unsigned factor)
{
    void *parameters[] = {&words, &factor};
    OK(cuLaunchKernel(scale, 1, 1, 1, WORDS, 1, 1, 0, NULL, parameters, NULL));
}

static unsigned *at(CUdeviceptr address) { return (unsigned *)address; }

static void require_at(CUdeviceptr where, unsigned factor, unsigned bias)
{
    for (unsigned i = 0; i < WORDS; i++) REQUIRE(at(where)[i] == i * factor + bias);
}

static void what_is_refused(void)
{
    CUmemAllocationProp wanted = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = node};
    CUmemGenericAllocationHandle handle;
    int file;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&handle, piece + 1, &wanted, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&handle, 0, &wanted, 0));
    wanted.location.id = 999;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&handle, piece, &wanted, 0));
    wanted.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, {0}};
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&handle, piece, &wanted, 0));
    wanted.location = host, wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&handle, piece, &wanted, 0));
    handle = created(host, piece);
    FAILS(cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemRelease(handle));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemRelease(handle));
}

static void told(CUdeviceptr base, CUmemGenericAllocationHandle handle)
{
    unsigned type = 99, is_managed = 99, is_mapped = 99;
    void *at_host = NULL;
    CUcontext context = (CUcontext)1;
    CUdeviceptr at_device = 0, start = 0;
    size_t size = 0;
    CUmemAllocationProp made;
    CUmemGenericAllocationHandle found;
    OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, base + 8));
    OK(cuPointerGetAttribute(&at_host, CU_POINTER_ATTRIBUTE_HOST_POINTER, base + 8));
    OK(cuPointerGetAttribute(&at_device, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, base + 8));
    OK(cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, base + 8));
    REQUIRE(type == CU_MEMORYTYPE_HOST && at_host == (void *)(base + 8) && at_device == base + 8 && context == NULL);
    CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_MAPPED,
                                   CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE};
    void *values[] = {&is_managed, &is_mapped, &start, &size};
    OK(cuPointerGetAttributes(4, names, values, base + 8));
    REQUIRE(is_managed == 0 && is_mapped == 1 && start == base && size == piece);
    start = size = 0;
    OK(cuMemGetAddressRange(&start, &size, base + 8));
    REQUIRE(start == base && size == piece);
    OK(cuMemGetAllocationPropertiesFromHandle(&made, handle));
    REQUIRE(made.type == CU_MEM_ALLOCATION_TYPE_PINNED && made.location.type == node.type && made.location.id == node.id);
    REQUIRE(made.requestedHandleTypes == CU_MEM_HANDLE_TYPE_NONE);
    OK(cuMemRetainAllocationHandle(&found, (void *)(base + 8)));
    REQUIRE(found == handle);
    OK(cuMemRelease(found));
}

/* Two of the host and one of the device in one reservation, which grows as it is used. */
static void side_by_side(void)
{
    CUdeviceptr base = reserved(3), on_device = base + 2 * piece, edge = base + piece - WORDS * 2;
    size_t free_before, free_after, all;
    unsigned words[WORDS];
    OK(cuMemGetInfo(&free_before, &all));
    CUmemGenericAllocationHandle first = created(node, piece), second = created(node, piece);
    OK(cuMemGetInfo(&free_after, &all));
    REQUIRE(free_before == free_after); /* no device has it */
    CUmemGenericAllocationHandle third = created(device, piece);
    CUmemAccessDesc by_device = {device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

    OK(cuMemMap(base, piece, 0, first, 0));
    REQUIRE(granted(device, base) == CU_MEM_ACCESS_FLAGS_PROT_NONE && granted(host, base) == CU_MEM_ACCESS_FLAGS_PROT_NONE);
    FAILS(cuMemsetD8(base, 1, 16)); /* nobody may use it yet */
    told(base, first);
    open_to_both(base, piece);
    REQUIRE(granted(device, base) == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    REQUIRE(granted(host, base) == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    REQUIRE(granted(node, base) == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    told(base, first);
    REQUIRE(at(base)[0] == 0 && at(base)[piece / 4 - 1] == 0);
    count_up(at(base), 0);
    launch(base, 3);
    OK(cuCtxSynchronize());
    require_at(base, 3, 5);

    /* What is mapped beside it is one range with it. */
    OK(cuMemMap(base + piece, piece, 0, second, 0));
    open_to_both(base + piece, piece);
    told(base, first);
    told(base + piece, second);
    count_up(at(edge), 0);
    launch(edge, 7);
    OK(cuCtxSynchronize());
    require_at(edge, 7, 5);
    require_at(base, 3, 5);

    OK(cuMemMap(on_device, piece, 0, third, 0));
    OK(cuMemSetAccess(on_device, piece, &by_device, 1));
    OK(cuMemcpyDtoD(on_device, edge, sizeof words));
    require_words(on_device, 7, 5);
    count_up(at(edge), 0);
    OK(cuMemcpyHtoD(on_device, at(edge), sizeof words));
    require_words(on_device, 1, 0);
    launch(on_device, 2);
    OK(cuMemcpyDtoH(at(edge), on_device, sizeof words));
    require_at(edge, 2, 5);

    /* In the order of a stream, without a wait of the host. */
    launch(edge, 10);
    OK(cuMemcpyDtoDAsync(on_device, edge, sizeof words, NULL));
    OK(cuMemsetD32Async(edge, 0x77, WORDS, NULL));
    OK(cuMemcpyDtoHAsync(at(base + piece + 4096), edge, sizeof words, NULL));
    OK(cuStreamSynchronize(NULL));
    require_words(on_device, 20, 55);
    require_at(edge, 0, 0x77);
    require_at(base + piece + 4096, 0, 0x77);

    /* A piece of the host goes, the one beside it and the bytes stay. */
    count_up(at(base + piece), 100);
    OK(cuMemUnmap(base, piece));
    FAILS(cuMemsetD8(base, 1, 16));
    launch(base + piece, 1);
    OK(cuCtxSynchronize());
    require_at(base + piece, 1, 105);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(base, 3 * piece));
    CUdeviceptr elsewhere = reserved(1);
    mapped(elsewhere, piece, first);
    require_at(elsewhere, 3, 5);
    OK(cuMemUnmap(elsewhere, piece));
    OK(cuMemAddressFree(elsewhere, piece));
    OK(cuMemUnmap(base + piece, 2 * piece));
    OK(cuMemAddressFree(base, 3 * piece));
    OK(cuMemRelease(first));
    OK(cuMemRelease(second));
    OK(cuMemRelease(third));
}

/* Unmapping one of three leaves the outer ones, and device memory may take its place. */
static void a_gap(void)
{
    CUdeviceptr base = reserved(3);
    CUmemGenericAllocationHandle two = created(host, 2 * piece), last = created(host, piece), other = created(device, piece);
    OK(cuMemMap(base, piece, 0, two, 0));
    OK(cuMemMap(base + piece, piece, piece, two, 0)); /* in parts */
    OK(cuMemMap(base + 2 * piece, piece, 0, last, 0));
    open_to_both(base, 3 * piece);
    for (int i = 0; i < 3; i++) count_up(at(base + i * piece), 100 * i);
    launch(base, 1);
    OK(cuCtxSynchronize());
    OK(cuMemUnmap(base + piece, piece));
    OK(cuMemMap(base + piece, piece, 0, other, 0));
    CUmemAccessDesc access = {device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemAccessDesc by_host = {host, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    OK(cuMemSetAccess(base + piece, piece, &access, 1));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemSetAccess(base + piece, piece, &by_host, 1)); /* the host has no way there */
    OK(cuMemcpyHtoD(base + piece, at(base), WORDS * 4));
    for (int i = 0; i < 3; i++) launch(base + i * piece, 2);
    OK(cuCtxSynchronize());
    require_at(base, 2, 15);
    require_words(base + piece, 2, 15);
    require_at(base + 2 * piece, 2, 405);
    OK(cuMemUnmap(base, 3 * piece));
    OK(cuMemMap(base + piece, piece, piece, two, 0));
    open_to_both(base + piece, piece);
    require_at(base + piece, 1, 100);
    OK(cuMemUnmap(base + piece, piece));
    OK(cuMemAddressFree(base, 3 * piece));
    OK(cuMemRelease(two));
    OK(cuMemRelease(last));
    OK(cuMemRelease(other));
}

/* One allocation at two places, given up by the program while it is mapped. */
static void twice(void)
{
    CUdeviceptr one = reserved(1), other = reserved(1);
    CUmemGenericAllocationHandle handle = created(node, piece);
    mapped(one, piece, handle);
    mapped(other, piece, handle);
    OK(cuMemRelease(handle));
    count_up(at(one), 0);
    require_at(other, 1, 0);
    launch(one, 4);
    OK(cuCtxSynchronize());
    require_at(other, 4, 5);
    launch(other, 1);
    OK(cuCtxSynchronize());
    require_at(one, 4, 10);
    OK(cuMemUnmap(one, piece));
    launch(other, 1);
    OK(cuCtxSynchronize());
    require_at(other, 4, 15);
    CUmemAccessDesc nobody[] = {{device, CU_MEM_ACCESS_FLAGS_PROT_NONE}, {host, CU_MEM_ACCESS_FLAGS_PROT_NONE}};
    OK(cuMemSetAccess(other, piece, nobody, 2));
    REQUIRE(granted(device, other) == CU_MEM_ACCESS_FLAGS_PROT_NONE && granted(host, other) == CU_MEM_ACCESS_FLAGS_PROT_NONE);
    FAILS(cuMemsetD8(other, 1, 16));
    open_to_both(other, piece);
    require_at(other, 4, 15);
    OK(cuMemUnmap(other, piece));
    OK(cuMemAddressFree(one, piece));
    OK(cuMemAddressFree(other, piece));
}

/* It belongs to no context: it is there when the one is gone that it was made in, and another one's kernels and copies
 * use it at once. */
static void beyond_a_context(CUcontext first)
{
    CUcontext second;
    CUmodule module;
    CUfunction kept = scale;
    CUdeviceptr base = reserved(1);
    CUmemGenericAllocationHandle handle = created(node, piece);
    OK(cuCtxCreate(&second, NULL, 0, 0));
    mapped(base, piece, handle);
    OK(cuModuleLoadData(&module, scale_ptx));
    OK(cuModuleGetFunction(&scale, module, "scale"));
    count_up(at(base), 0);
    launch(base, 6);
    OK(cuCtxSynchronize());
    OK(cuCtxDestroy(second));
    OK(cuCtxSetCurrent(first));
    scale = kept;
    require_at(base, 6, 5);
    launch(base, 1);
    OK(cuCtxSynchronize());
    require_at(base, 6, 10);
    CUdeviceptr copied;
    OK(cuMemAlloc(&copied, WORDS * 4));
    OK(cuMemcpyHtoD(copied, at(base), WORDS * 4));
    require_words(copied, 6, 10);

    /* A child has the bytes, too, and takes nothing away when it ends. */
    pid_t child = fork();
    if (child == 0) _exit(at(base)[2] == 22 ? 0 : 1);
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child && status == 0);
    OK(cuMemcpyDtoH(at(base + 4096), copied, WORDS * 4));
    require_at(base + 4096, 6, 10);
    OK(cuMemFree(copied));
    OK(cuMemUnmap(base, piece));
    OK(cuMemRelease(handle));
    OK(cuMemAddressFree(base, piece));
}

int main(void)
{
    CUcontext context = start();
    CUmodule module;
    REQUIRE(attribute(nodes) == 1 && attribute(CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) == 1);
    node = (CUmemLocation){CU_MEM_LOCATION_TYPE_HOST_NUMA, {attribute(CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID)}};
    REQUIRE(node.id >= 0);
    CUmemAllocationProp wanted = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = node};
    OK(cuMemGetAllocationGranularity(&piece, &wanted, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    OK(cuModuleLoadData(&module, scale_ptx));
    OK(cuModuleGetFunction(&scale, module, "scale"));
    what_is_refused();
    side_by_side();
    a_gap();
    twice();
    beyond_a_context(context);
    OK(cuDevicePrimaryCtxRelease(0));
    return passed();
}
