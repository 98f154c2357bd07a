/* Memory by descriptor: this program starts itself again, and the second process maps, reads and writes what the first
 * one exported. One descriptor comes to it by a socket; the other one it takes out of the first process. */
#include "check.h"
#include <cuda.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
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

/* A descriptor in a message, to be sent or received. */
static struct msghdr carrying(char room[CMSG_SPACE(sizeof(int))], int file)
{
    static char byte;
    static struct iovec body = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &body, .msg_iovlen = 1, .msg_control = room, .msg_controllen = CMSG_SPACE(sizeof(int))};
    *CMSG_FIRSTHDR(&message) =
        (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof file), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(CMSG_FIRSTHDR(&message)), &file, sizeof file);
    return message;
}

static int received(int socket)
{
    _Alignas(struct cmsghdr) char room[CMSG_SPACE(sizeof(int))];
    struct msghdr message = carrying(room, -1);
    int file;
    REQUIRE(recvmsg(socket, &message, 0) == 1);
    memcpy(&file, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof file);
    return file;
}

static int taken(pid_t owner, int number)
{
    int process = (int)syscall(SYS_pidfd_open, owner, 0), file = (int)syscall(SYS_pidfd_getfd, process, number, 0);
    REQUIRE(file >= 0);
    OK(close(process));
    return file;
}

/* Another process that gets these descriptors; answers how it ended. */
static int again(const char *self, const int files[2])
{
    _Alignas(struct cmsghdr) char room[CMSG_SPACE(sizeof(int))];
    struct msghdr message = carrying(room, files[0]);
    char numbers[3][16];
    int sockets[2];
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
    REQUIRE(sendmsg(sockets[0], &message, 0) == 1);
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY); /* needed and known only where ancestors are protected */
    const int values[3] = {sockets[1], getpid(), files[1]};
    for (int i = 0; i < 3; i++) snprintf(numbers[i], sizeof numbers[i], "%d", values[i]);
    pid_t child = fork();
    if (!child) {
        execl(self, self, numbers[0], numbers[1], numbers[2], NULL);
        _exit(127);
    }
    int status;
    REQUIRE(waitpid(child, &status, 0) == child);
    OK(close(sockets[0]));
    OK(close(sockets[1]));
    return status;
}

static CUmemGenericAllocationHandle imported(int file)
{
    CUmemGenericAllocationHandle handle;
    OK(cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)file, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    OK(close(file));
    return handle;
}

static int second(char **numbers)
{
    start();
    CUmemGenericAllocationHandle early = imported(received(atoi(numbers[0])));
    CUmemGenericAllocationHandle late = imported(taken(atoi(numbers[1]), atoi(numbers[2])));
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
    if (count == 4) return second(arguments + 1);
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
