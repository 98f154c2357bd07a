/* A program that has closed its standard streams, as daemons do: none of the driver's descriptors has their numbers, so
 * what it prints goes nowhere, and what it opens there is its own. All of the driver's are closed in what it starts. */
#define _GNU_SOURCE
#include "driver.h"
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

enum { KEPT = 100, BYTES = 32 << 20 };

static char was_open[4096];

static int is_open(int fd)
{
    return fcntl(fd, F_GETFD) != -1;
}

/* The standard streams as they were, so that a failure is seen. */
static void show(int shown)
{
    for (int fd = 0; fd < 3; fd++) {
        if (shown) {
            REQUIRE(dup2(KEPT + fd, fd) == fd);
        } else {
            close(fd);
        }
    }
}

/* What the program prints finds nothing to reach. */
static void look(void)
{
    int wrong = -1, inherited = -1;
    for (int fd = 0; fd < 3; fd++) {
        if (write(fd, "printed\n", 8) != -1 || errno != EBADF) wrong = fd;
    }
    for (int fd = 3; fd < (int)sizeof was_open; fd++) {
        int flags = fcntl(fd, F_GETFD);
        if (flags != -1 && !was_open[fd] && !(flags & FD_CLOEXEC)) inherited = fd;
    }
    show(1);
    REQUIRE(wrong == -1);
    REQUIRE(inherited == -1);
    show(0);
}

static void use_nvml(void)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    int (*start)(void) = library ? (int (*)(void))dlsym(library, "nvmlInit_v2") : NULL;
    int (*count)(unsigned *) = library ? (int (*)(unsigned *))dlsym(library, "nvmlDeviceGetCount_v2") : NULL;
    unsigned devices = 0;
    int codes = start && count ? start() * 1000 + count(&devices) : -1;
    show(1);
    OK(codes);
    REQUIRE(devices >= 1);
    show(0);
}

int main(void)
{
    for (int fd = 0; fd < 3; fd++) REQUIRE(fcntl(fd, F_DUPFD, KEPT + fd) == KEPT + fd);
    for (int fd = 3; fd < (int)sizeof was_open; fd++) was_open[fd] = is_open(fd);
    show(0);
    CUmodule module;
    CUfunction scale;
    CUdeviceptr data, large;
    void *pinned, *plain = malloc(BYTES);
    unsigned words[WORDS], factor = 3;
    use_nvml();
    look();
    OK(cuInit(0));
    look();
    start();
    look();
    OK(cuModuleLoadData(&module, scale_ptx));
    OK(cuModuleGetFunction(&scale, module, "scale"));
    OK(cuMemAlloc(&data, sizeof words));
    OK(cuMemAlloc(&large, BYTES));
    count_up(words, 0);
    OK(cuMemcpyHtoD(data, words, sizeof words));
    look();
    OK(cuMemHostAlloc(&pinned, BYTES, 0));
    look();
    memset(pinned, 5, BYTES);
    OK(cuMemcpyHtoDAsync(large, pinned, BYTES, NULL));
    OK(cuMemcpyDtoH(plain, large, BYTES));
    look();
    void *arguments[] = {&data, &factor};
    for (int i = 0; i < 50; i++) {
        factor = i ? 1 : 3;
        OK(cuLaunchKernel(scale, 1, 1, 1, WORDS, 1, 1, 0, NULL, arguments, NULL));
        look();
    }
    OK(cuCtxSynchronize());

    /* What takes the free numbers now is the program's. */
    int file = open("/dev/null", O_RDWR);
    OK(cuMemFreeHost(pinned));
    OK(cuMemHostAlloc(&pinned, BYTES, 0));
    int still = write(file, "mine", 4);
    show(1);
    REQUIRE(file == 0 && still == 4);
    REQUIRE(memcmp(plain, memset(pinned, 5, BYTES), BYTES) == 0);
    require_words(data, 3, 50 * 5);
    return passed();
}
