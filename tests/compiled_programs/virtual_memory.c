/* Reserving addresses and backing them piece by piece, as allocators that grow in place do. */
#include "check.h"
#include <cuda.h>

int main(void)
{
    CUcontext context;
    OK(cuInit(0));
    int supported;
    OK(cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0));
    REQUIRE(supported == 1);

    CUmemAllocationProp wanted = {0};
    wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    wanted.location.id = 0;
    size_t piece;
    OK(cuMemGetAllocationGranularity(&piece, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    REQUIRE(piece > 0 && (piece & (piece - 1)) == 0);

    CUdeviceptr base;
    CUmemGenericAllocationHandle first, second, odd;
    OK(cuMemAddressReserve(&base, 4 * piece, 0, 0, 0));
    REQUIRE(base % piece == 0);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&odd, piece + 1, &wanted, 0));
    OK(cuMemCreate(&first, piece, &wanted, 0)); /* needs no context, nor do addresses */
    OK(cuMemMap(base, piece, 0, first, 0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuMemCreate(&second, piece, &wanted, 0));
    FAILS(cuMemsetD8(base + piece, 1, 16)); /* nothing is there yet */
    OK(cuMemMap(base + piece, piece, 0, second, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemMap(base, piece, 0, second, 0)); /* taken */
    CUmemAccessDesc access = {wanted.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    unsigned long long allowed = 99;
    OK(cuMemGetAccess(&allowed, &wanted.location, base));
    REQUIRE(allowed == CU_MEM_ACCESS_FLAGS_PROT_NONE);
    OK(cuMemSetAccess(base, 2 * piece, &access, 1));
    OK(cuMemGetAccess(&allowed, &wanted.location, base + piece));
    REQUIRE(allowed == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);

    /* An address leads back to its allocation, which knows how it was made. */
    CUmemGenericAllocationHandle found;
    CUmemAllocationProp made = {0};
    OK(cuMemRetainAllocationHandle(&found, (void *)(base + piece)));
    REQUIRE(found == second);
    OK(cuMemGetAllocationPropertiesFromHandle(&made, found));
    REQUIRE(made.type == wanted.type && made.location.type == wanted.location.type && made.location.id == 0);
    OK(cuMemRelease(found));

    /* A program that frees by address asks for the size: of this allocation, whatever lies beside it. */
    CUdeviceptr start = 0;
    size_t bytes = 0;
    unsigned shareable = 99;
    OK(cuMemGetAddressRange(&start, &bytes, base + piece + 8));
    REQUIRE(start == base + piece && bytes == piece);
    OK(cuPointerGetAttribute(&shareable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, base));
    REQUIRE(shareable == 0); /* mapped, not allocated */

    /* Both pieces are one range. */
    unsigned words[4];
    OK(cuMemsetD32(base, 0x01020304, 2 * piece / 4));
    OK(cuMemcpyDtoH(words, base + piece - 8, sizeof words));
    for (int i = 0; i < 4; i++) REQUIRE(words[i] == 0x01020304);

    /* The bytes belong to the allocation, not to the address. */
    OK(cuMemsetD32(base + piece, 42, 1));
    OK(cuMemUnmap(base + piece, piece));
    OK(cuMemMap(base + 3 * piece, piece, 0, second, 0));
    OK(cuMemSetAccess(base + 3 * piece, piece, &access, 1));
    OK(cuMemcpyDtoH(words, base + 3 * piece, 4));
    REQUIRE(words[0] == 42);

    /* One allocation at two places: what is written at one is read at the other, and either may go first. */
    OK(cuMemMap(base + 2 * piece, piece, 0, second, 0));
    OK(cuMemSetAccess(base + 2 * piece, piece, &access, 1));
    OK(cuMemsetD32(base + 2 * piece, 43, 1));
    OK(cuMemcpyDtoH(words, base + 3 * piece, 4));
    REQUIRE(words[0] == 43);
    OK(cuMemUnmap(base + 3 * piece, piece));
    OK(cuMemcpyDtoH(words, base + 2 * piece, 4));
    REQUIRE(words[0] == 43);
    OK(cuMemMap(base + piece, piece, 0, second, 0));
    OK(cuMemSetAccess(base + piece, piece, &access, 1));
    OK(cuMemsetD32(base + piece, 44, 1));
    OK(cuMemcpyDtoH(words, base + 2 * piece, 4));
    REQUIRE(words[0] == 44);
    OK(cuMemUnmap(base + 2 * piece, piece));
    OK(cuMemcpyDtoH(words, base + piece, 4));
    REQUIRE(words[0] == 44);
    OK(cuMemUnmap(base + piece, piece));

    OK(cuMemUnmap(base, piece));
    OK(cuMemRelease(first));
    OK(cuMemRelease(second));
    FAILS(cuMemRelease(second));
    OK(cuMemAddressFree(base, 4 * piece));
    FAILS(cuMemAddressFree(base, 4 * piece));
    return passed();
}
