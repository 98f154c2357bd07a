/* Children of a process that uses CUDA, made in every way and ending in every way: they are refused at once, but for what
 * needs no device, and the session stays their parent's. */
#define _GNU_SOURCE
#include "driver.h"
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROUNDS = 3 };
enum { FORK, BARE_FORK, CLONE, VFORK, MADE_WAYS };
enum { LEAVE, EXIT, KILL, END_WAYS };

static CUcontext context;
static CUfunction scale;
static CUdeviceptr data;
static int version;
static atomic_int launches, stop;

static pid_t make(int how)
{
    static pid_t (*bare)(void);
    if (!bare) bare = (pid_t (*)(void))dlsym(RTLD_DEFAULT, "_Fork");
    if (how == BARE_FORK && bare) return bare();
    if (how == BARE_FORK || how == CLONE) return (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    return fork();
}

static int is_refused(void)
{
    int found = 0;
    const char *name = NULL;
    CUdeviceptr memory;
    void *function = NULL;
    if (cuDriverGetVersion(&found) != CUDA_SUCCESS || found != version) return 10;
    if (cuGetErrorName(CUDA_ERROR_NOT_INITIALIZED, &name) != CUDA_SUCCESS || !name) return 11;
    if (cuGetProcAddress("cuInit", &function, 12000, 0, NULL) != CUDA_SUCCESS || !function) return 12;
    if (cuInit(0) != CUDA_ERROR_NOT_INITIALIZED) return 13;
    if (cuMemAlloc(&memory, 4096) != CUDA_ERROR_NOT_INITIALIZED) return 14;
    if (cuCtxSynchronize() != CUDA_ERROR_NOT_INITIALIZED) return 15;
    if (cuDeviceGetCount(&found) != CUDA_ERROR_NOT_INITIALIZED) return 16;
    return 0;
}

static void end(int how, int code)
{
    if (how == KILL && code == 0) kill(getpid(), SIGKILL);
    if (how == EXIT) exit(code);
    _exit(code);
}

static void require_end(pid_t child, int how)
{
    int status = -1;
    REQUIRE(child > 0 && waitpid(child, &status, 0) == child);
    if (how == KILL) {
        REQUIRE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    } else {
        EXPECT(0, WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    }
}

static void *launch_on(void *unused)
{
    (void)unused;
    unsigned one = 1;
    void *arguments[] = {&data, &one};
    OK(cuCtxSetCurrent(context));
    while (!stop) {
        OK(cuLaunchKernel(scale, 1, 1, 1, WORDS, 1, 1, 0, NULL, arguments, NULL));
        OK(cuCtxSynchronize());
        launches++;
    }
    return NULL;
}

int main(int count, char **arguments)
{
    unsigned words[WORDS];
    CUmodule module;
    pthread_t thread;
    if (count > 1) return 0; /* what is spawned */
    context = start();
    OK(cuDriverGetVersion(&version));
    OK(cuModuleLoadData(&module, scale_ptx));
    OK(cuModuleGetFunction(&scale, module, "scale"));
    OK(cuMemAlloc(&data, sizeof words));
    count_up(words, 0);
    OK(cuMemcpyHtoD(data, words, sizeof words));
    REQUIRE(pthread_create(&thread, NULL, launch_on, NULL) == 0);
    for (int made = 0; made < VFORK; made++) {
        for (int ended = 0; ended < END_WAYS; ended++) {
            for (int calls = 0; calls < 2; calls++) {
                for (int i = 0; i < ROUNDS; i++) {
                    pid_t child = make(made);
                    if (child == 0) end(ended, calls ? is_refused() : 0);
                    require_end(child, ended);
                    OK(cuCtxSynchronize());
                }
            }
        }
    }
    for (int i = 0; i < ROUNDS; i++) {
        pid_t child = vfork();
        if (child == 0) _exit(0);
        require_end(child, LEAVE);
        char *command[] = {arguments[0], "child", NULL}, *nothing[] = {NULL};
        REQUIRE(posix_spawn(&child, "/proc/self/exe", NULL, NULL, command, nothing) == 0);
        int status;
        REQUIRE(waitpid(child, &status, 0) == child); /* without a library path it may not start */
        OK(cuCtxSynchronize());
    }
    int before = launches;
    while (launches < before + 2) usleep(1000);
    stop = 1;
    REQUIRE(pthread_join(thread, NULL) == 0);
    require_words(data, 1, 5 * (unsigned)launches);
    return passed();
}
