/* Calls CUDA with SIGPIPE at its default until an error comes; prints it. A lost appliance must be an error, not a signal. */
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

int main(void) {
    signal(SIGPIPE, SIG_DFL);
    void *lib = dlopen("libcuda.so.1", RTLD_NOW);
    if (!lib) { puts(dlerror()); return 1; }
    int (*init)(unsigned) = dlsym(lib, "cuInit");
    int (*retain)(void **, int) = dlsym(lib, "cuDevicePrimaryCtxRetain");
    int (*set)(void *) = dlsym(lib, "cuCtxSetCurrent");
    int (*alloc)(unsigned long long *, size_t) = dlsym(lib, "cuMemAlloc_v2");
    int (*memset32)(unsigned long long, unsigned, size_t) = dlsym(lib, "cuMemsetD32_v2");
    int (*synchronize)(void) = dlsym(lib, "cuCtxSynchronize");
    void *context;
    unsigned long long p;
    if (init(0) || retain(&context, 0) || set(context) || alloc(&p, 4096) || synchronize()) { puts("no start"); return 1; }
    puts("ready");
    fflush(stdout);
    for (;;) {
        for (int i = 0; i < 1000; i++) memset32(p, i, 1024);
        int code = synchronize();
        if (code) { printf("error %d\n", code); return 0; }
        usleep(10000);
    }
}
