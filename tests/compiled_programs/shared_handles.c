/* Memory by descriptor: this program starts itself again, and the second process maps, reads and writes what the first
 * one exported. */
#include "check.h"
#include <cuda.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static CUmemAllocationProp wanted;
static CUmemAccessDesc access_;
static size_t piece;

static void start(void)
{
    CUcontext context;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    access_.location = wanted.location;
    access_.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    OK(cuMemGetAllocationGranularity(&piece, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
}

static CUdeviceptr mapped(CUmemGenericAllocationHandle handle)
{
    CUdeviceptr base;
    OK(cuMemAddressReserve(&base, piece, 0, 0, 0));
    OK(cuMemMap(base, piece, 0, handle, 0));
    OK(cuMemSetAccess(base, piece, &access_, 1));
    return base;
}

static void unmapped(CUdeviceptr base, CUmemGenericAllocationHandle handle)
{
    OK(cuMemUnmap(base, piece));
    OK(cuMemRelease(handle));
    OK(cuMemAddressFree(base, piece));
}

static unsigned word(CUdeviceptr base)
{
    unsigned value;
    OK(cuMemcpyDtoH(&value, base, sizeof value));
    return value;
}

/* Another process with these descriptors; answers how it ended. */
static int again(const char *self, const int files[2])
{
    char numbers[2][16];
    for (int i = 0; i < 2; i++) {
        int file = dup(files[i]); /* without close-on-exec */
        snprintf(numbers[i], sizeof numbers[i], "%d", file);
    }
    pid_t child = fork();
    if (!child) {
        execl(self, self, numbers[0], numbers[1], NULL);
        _exit(127);
    }
    int status;
    REQUIRE(waitpid(child, &status, 0) == child);
    return status;
}

static CUmemGenericAllocationHandle imported(int file)
{
    CUmemGenericAllocationHandle handle;
    OK(cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)file, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    OK(close(file));
    return handle;
}

static int second(char **files)
{
    start();
    CUmemGenericAllocationHandle early = imported(atoi(files[0])), late = imported(atoi(files[1]));
    CUmemAllocationProp made = {0};
    OK(cuMemGetAllocationPropertiesFromHandle(&made, early));
    REQUIRE(made.type == wanted.type && made.requestedHandleTypes == wanted.requestedHandleTypes);
    REQUIRE(made.location.type == wanted.location.type && made.location.id == 0);
    CUdeviceptr first = mapped(early), other = mapped(late);
    REQUIRE(word(first) == 0x11111111 && word(other) == 0x22222222);
    OK(cuMemsetD32(first, 0x33333333, piece / 4));
    OK(cuMemcpyDtoD(other, first, piece));
    OK(cuCtxSynchronize());
    unmapped(first, early);
    unmapped(other, late);
    return 0;
}

int main(int count, char **arguments)
{
    if (count == 3) return second(arguments + 1);
    start();
    int supported, files[2], odd;
    OK(cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 0));
    REQUIRE(supported == 1);

    CUmemGenericAllocationHandle early, late, own;
    OK(cuMemCreate(&early, piece, &wanted, 0));
    OK(cuMemCreate(&late, piece, &wanted, 0));
    /* One before it is mapped, and one after. */
    OK(cuMemExportToShareableHandle(&files[0], early, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    CUdeviceptr first = mapped(early), other = mapped(late);
    OK(cuMemExportToShareableHandle(&files[1], late, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemsetD32(first, 0x11111111, piece / 4));
    OK(cuMemsetD32(other, 0x22222222, piece / 4));
    OK(cuCtxSynchronize());
    REQUIRE(again(arguments[0], files) == 0);
    REQUIRE(word(first) == 0x33333333 && word(other) == 0x33333333);

    /* A second import in the same process is the same memory. */
    own = imported(dup(files[0]));
    unmapped(first, early);
    first = mapped(own);
    REQUIRE(word(first + piece - 4) == 0x33333333);
    unmapped(first, own);
    unmapped(other, late);

    /* What cannot be exported or imported. */
    wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
    OK(cuMemCreate(&own, piece, &wanted, 0));
    FAILS(cuMemExportToShareableHandle(&odd, own, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemRelease(own));
    FAILS(cuMemExportToShareableHandle(&odd, own, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    int ends[2];
    OK(pipe(ends));
    FAILS(cuMemImportFromShareableHandle(&own, (void *)(uintptr_t)ends[0], CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    return passed();
}
