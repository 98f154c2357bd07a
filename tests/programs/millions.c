/* millions LAUNCHES SECONDS HOW: launches of a kernel, or of a graph with one (HOW is `kernel` or `graph`), behind a stream
 * that waits for a word, which a second thread writes after so long; with HOW `copy` the thread copies much before, and what
 * it copied must be there.
 *
 * Prints `ready` and reads a line, then begins. Prints how many were given before the word was written, how many of this
 * process's MiB more than before were in memory at most, and what the launches counted.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char ptx[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry increment(.param .u64 counter)\n{\n.reg .b64 %d<2>;\n.reg .b32 %r<2>;\n"
    "ld.param.u64 %d1, [counter];\natom.global.add.u32 %r1, [%d1], 1;\nret;\n}\n";

typedef int (*call)();
static void *library;
static call function(const char *name)
{
    call found = (call)dlsym(library, name);
    if (!found) fprintf(stderr, "no %s\n", name), exit(3);
    return found;
}

static void ok(int code, const char *what)
{
    if (code) fprintf(stderr, "%s: error %d\n", what, code), exit(4);
}

static long resident(void)
{
    long pages = 0, all;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%ld %ld", &all, &pages) != 2) exit(5);
    fclose(file);
    return pages * sysconf(_SC_PAGESIZE);
}

static volatile long given, given_before, most;
static uint64_t word;
static void *context;
static int seconds, copies;

enum { COPIED = 16 << 20 };
static unsigned char *bytes;
static uint64_t target;

/* Large enough for several connections; the memory is there from the first time on. */
static void copy(int value)
{
    static unsigned char found[COPIED];
    memset(bytes, value, COPIED);
    ok(function("cuMemcpyHtoD_v2")(target, bytes, (size_t)COPIED), "cuMemcpyHtoD");
    ok(function("cuMemcpyDtoH_v2")(found, target, (size_t)COPIED), "cuMemcpyDtoH");
    if (memcmp(found, bytes, COPIED)) fprintf(stderr, "other bytes came back\n"), exit(8);
}

static void *release(void *other)
{
    ok(function("cuCtxSetCurrent")(context), "cuCtxSetCurrent");
    for (int tick = 0; tick < seconds * 20; tick++) {
        long now = resident();
        if (now > most) most = now;
        usleep(50000);
    }
    given_before = given;
    if (copies) copy(2);
    ok(function("cuStreamWriteValue32_v2")(other, word, 1, 0), "cuStreamWriteValue32");
    ok(function("cuStreamSynchronize")(other), "cuStreamSynchronize");
    return 0;
}

int main(int argc, char **argv)
{
    if (argc < 4) return fprintf(stderr, "millions LAUNCHES SECONDS HOW\n"), 2;
    long launches = atol(argv[1]);
    seconds = atoi(argv[2]);
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) return fprintf(stderr, "%s\n", dlerror()), 3;
    void *module, *kernel, *held, *other;
    uint64_t counter;
    unsigned zeros[2] = {0, 0}, counted;
    ok(function("cuInit")(0), "cuInit");
    ok(function("cuDevicePrimaryCtxRetain")(&context, 0), "cuDevicePrimaryCtxRetain");
    ok(function("cuCtxSetCurrent")(context), "cuCtxSetCurrent");
    ok(function("cuModuleLoadData")(&module, ptx), "cuModuleLoadData");
    ok(function("cuModuleGetFunction")(&kernel, module, "increment"), "cuModuleGetFunction");
    ok(function("cuStreamCreate")(&held, 1), "cuStreamCreate");
    ok(function("cuStreamCreate")(&other, 1), "cuStreamCreate");
    ok(function("cuMemAlloc_v2")(&counter, sizeof zeros), "cuMemAlloc");
    word = counter + 4;
    ok(function("cuMemcpyHtoD_v2")(counter, zeros, sizeof zeros), "cuMemcpyHtoD");
    void *parameters[] = {&counter}, *graph, *executable;
    ok(function("cuStreamBeginCapture_v2")(other, 0), "cuStreamBeginCapture");
    ok(function("cuLaunchKernel")(kernel, 1, 1, 1, 1, 1, 1, 0, other, parameters, (void **)0), "cuLaunchKernel");
    ok(function("cuStreamEndCapture")(other, &graph), "cuStreamEndCapture");
    ok(function("cuGraphInstantiateWithFlags")(&executable, graph, (uint64_t)0), "cuGraphInstantiate");
    copies = !strcmp(argv[3], "copy");
    if (copies) {
        bytes = malloc(COPIED);
        ok(function("cuMemAlloc_v2")(&target, (size_t)COPIED), "cuMemAlloc");
        copy(1);
    }
    puts("ready");
    fflush(stdout);
    if (getchar() == EOF) return 7;
    long before = resident();
    ok(function("cuStreamWaitValue32_v2")(held, word, 1, 0), "cuStreamWaitValue32");
    pthread_t thread;
    if (pthread_create(&thread, 0, release, other)) return 6;
    call launch = function("cuLaunchKernel"), launch_graph = function("cuGraphLaunch");
    int graphs = !strcmp(argv[3], "graph");
    for (; given < launches; given++)
        ok(graphs ? launch_graph(executable, held)
                  : launch(kernel, 1, 1, 1, 1, 1, 1, 0, held, parameters, (void **)0), "a launch");
    ok(function("cuStreamSynchronize")(held), "cuStreamSynchronize");
    pthread_join(thread, 0);
    ok(function("cuMemcpyDtoH_v2")(&counted, counter, sizeof counted), "cuMemcpyDtoH");
    printf("%ld before, %ld MiB more, %u counted\n", given_before, (most - before) >> 20, counted);
    return 0;
}
