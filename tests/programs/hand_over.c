/* Processes of one share hand its memory over: hand_over HOW ROUNDS PERCENT PAUSE_MS
 *
 * One after the other, each with so much of the memory: return, exit, kill, exec (HOW it leaves; `exec` runs this program
 * again in the same process). Two that live at the same time, in turn: free, unmap, trim, reset (HOW it gives back).
 * Prints the rounds, how many were refused the memory, how many saw bytes of another process, and the median, the 99th
 * percentile and the longest of the milliseconds from the start of a process, or of an allocation, until it has the memory,
 * and until it has read a word of it.
 * A process that comes after another waits for PAUSE_MS before it starts. If that is negative, only every second one
 * waits, for as long; those that waited, and those that did not, are reported apart (not of `exec`).
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef int (*call)();
enum { MOST = 4096, WORDS = 1024, SLAB = 2 << 20, REFUSED = 2 };
/* What this program writes, each time that it is started another one. */
static unsigned mine;

static void *library;
static int call_of(const char *name, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e)
{
    call found = (call)dlsym(library, name);
    if (!found) fprintf(stderr, "no %s\n", name), exit(3);
    return found(a, b, c, d, e);
}
#define CU(name, ...) call_of_(name, __VA_ARGS__, 0, 0, 0, 0, 0)
#define call_of_(name, a, b, c, d, e, ...) call_of(name, (uint64_t)(a), (uint64_t)(b), (uint64_t)(c), (uint64_t)(d), (uint64_t)(e))
#define OK(name, ...) do { int code_ = CU(name, __VA_ARGS__); if (code_) fprintf(stderr, "%s: %d\n", name, code_), exit(4); } while (0)

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

/* What the documentation of the driver gives these structures: a type, and where the memory is. */
struct location { int type, id; };
struct properties { int type, handles; struct location location; void *windows; unsigned char flags[8]; };
struct access { struct location location; int flags; };

static void *stream, *pool;
static uint64_t handle;

static void start(void)
{
    void *context;
    mine = (unsigned)(now() * 1e6) | 1;
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) fprintf(stderr, "%s\n", dlerror()), exit(3);
    OK("cuInit", 0);
    OK("cuDevicePrimaryCtxRetain", &context, 0);
    OK("cuCtxSetCurrent", context);
}

static size_t part(int percent)
{
    size_t free_, total;
    OK("cuMemGetInfo_v2", &free_, &total);
    return total / 100 * percent / SLAB * SLAB;
}

static int take(const char *how, uint64_t *at, size_t size)
{
    struct properties properties = {1, 0, {1, 0}, 0, {0}};
    struct access access = {{1, 0}, 3};
    if (!strcmp(how, "unmap")) {
        int code = CU("cuMemCreate", &handle, size, &properties, 0);
        if (code) return code;
        OK("cuMemAddressReserve", at, size, 0, 0, 0);
        OK("cuMemMap", *at, size, 0, handle, 0);
        OK("cuMemSetAccess", *at, size, &access, 1);
        return 0;
    }
    if (!strcmp(how, "trim")) {
        if (!stream) OK("cuStreamCreate", &stream, 1);
        if (!pool) OK("cuDeviceGetDefaultMemPool", &pool, 0);
        int code = CU("cuMemAllocAsync", at, size, stream);
        return code ? code : CU("cuStreamSynchronize", stream);
    }
    return CU("cuMemAlloc_v2", at, size);
}

static void give_back(const char *how, uint64_t at, size_t size)
{
    if (!strcmp(how, "unmap")) {
        OK("cuMemUnmap", at, size);
        OK("cuMemAddressFree", at, size);
        OK("cuMemRelease", handle);
    } else if (!strcmp(how, "trim")) {
        OK("cuMemFreeAsync", at, stream);
        OK("cuStreamSynchronize", stream);
        OK("cuMemPoolTrimTo", pool, 0);
    } else if (!strcmp(how, "reset")) {
        void *context;
        OK("cuDevicePrimaryCtxReset_v2", 0);
        OK("cuDevicePrimaryCtxRetain", &context, 0);
        OK("cuCtxSetCurrent", context);
    } else {
        /* With work under way: the call waits for it, as it does natively. */
        OK("cuMemsetD32Async", at, mine, size / 4, 0);
        OK("cuMemFree_v2", at);
    }
}

/* Does it hold what another process wrote? Then writes what another one must not see. */
static int sees_another(uint64_t at, size_t size)
{
    unsigned words[WORDS], found = 0;
    for (int third = 0; third < 3; third++) {
        OK("cuMemcpyDtoH_v2", words, at + (size - sizeof words) / 2 / 4096 * 4096 * third, sizeof words);
        for (int i = 0; i < WORDS; i++) found += words[i] != 0 && words[i] != mine;
    }
    OK("cuMemsetD32_v2", at, mine, size / 4);
    OK("cuCtxSynchronize", 0);
    return found > 0;
}

struct result { int code, wrong; double ms, read_ms; };

static struct result once(const char *how, int percent, double since, uint64_t *at, size_t *size)
{
    struct result result = {0, 0, 0, 0};
    unsigned word;
    *size = part(percent);
    result.code = take(how, at, *size);
    result.ms = now() - since;
    if (result.code) return result;
    OK("cuMemcpyDtoH_v2", &word, *at, sizeof word);
    result.read_ms = now() - since;
    result.wrong = sees_another(*at, *size);
    return result;
}

static int by_time(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct results { double times[MOST], read_times[MOST]; int count, refused, wrong; };
static struct results all, those_that_waited;

static void note(struct results *to, struct result result)
{
    if (result.code && result.code != REFUSED) fprintf(stderr, "error %d\n", result.code), exit(5);
    to->refused += result.code == REFUSED;
    to->wrong += result.wrong;
    to->read_times[to->count] = result.read_ms;
    to->times[to->count++] = result.ms;
}

static int report(struct results *of)
{
    int count = of->count;
    printf("%d rounds, %d refused, %d wrong", count, of->refused, of->wrong);
    for (double *them = of->times; them; them = them == of->times ? of->read_times : 0) {
        qsort(them, count, sizeof *them, by_time);
        printf("; %smedian %.1f, p99 %.1f, longest %.1f ms", them == of->times ? "" : "read: ", them[count / 2],
               them[(count * 99 - 1) / 100], them[count - 1]);
    }
    printf("\n");
    return of->refused || of->wrong;
}

/* All of `exec`: what was seen so far is in a pipe of the process that began. */
static int leave(const char *how, int rounds, int percent, int out, char **argv)
{
    double since = now();
    uint64_t at;
    size_t size;
    start();
    struct result result = once(how, percent, since, &at, &size);
    if (write(out, &result, sizeof result) != sizeof result) exit(6);
    if (!strcmp(how, "kill")) kill(getpid(), SIGKILL);
    if (!strcmp(how, "exit")) _exit(0);
    if (!strcmp(how, "exec") && rounds > 1) {
        char left[16], descriptor[16];
        snprintf(left, sizeof left, "%d", rounds - 1);
        snprintf(descriptor, sizeof descriptor, "%d", out);
        execl("/proc/self/exe", argv[0], how, left, argv[3], argv[4], descriptor, (char *)0);
        exit(7);
    }
    return 0;
}

static int one_after_the_other(const char *how, int rounds, int percent, int pause, char **argv)
{
    int pipes[2], each = strcmp(how, "exec") ? 1 : rounds;
    if (pipe(pipes)) return 6;
    /* One that ends without a word would be waited for for ever. */
    if (each == 1 && fcntl(pipes[0], F_SETFL, O_NONBLOCK)) return 6;
    for (int round = 0; round < rounds; round += each) {
        int waits = pause < 0 && round % 2 == 0;
        if (round && (pause > 0 || waits)) usleep(abs(pause) * 1000);
        pid_t child = fork();
        if (!child) {
            close(pipes[0]);
            return leave(how, rounds, percent, pipes[1], argv);
        }
        if (each > 1) close(pipes[1]);
        struct result result;
        for (int got = 0; got < each; got++) {
            if (each == 1) waitpid(child, 0, 0);
            if (read(pipes[0], &result, sizeof result) != sizeof result) return 6;
            note(waits ? &those_that_waited : &all, result);
        }
        if (each > 1) waitpid(child, 0, 0);
    }
    if (those_that_waited.count) printf("waited: "), report(&those_that_waited), printf("did not: ");
    return report(&all) || those_that_waited.refused || those_that_waited.wrong;
}

static int in_turn(const char *how, int rounds, int percent)
{
    int there[2], back[2];
    if (pipe(there) || pipe(back)) return 6;
    pid_t child = fork();
    int in = child ? back[0] : there[0], out = child ? there[1] : back[1];
    close(child ? back[1] : there[1]);
    close(child ? there[0] : back[0]);
    struct result result, other;
    start();
    for (int round = 0; round < rounds; round++) {
        if (!child || round) {
            if (read(in, &other, sizeof other) != sizeof other) return 6;
            if (child) note(&all, other);
        }
        uint64_t at;
        size_t size;
        double since = now();
        result = once(how, percent, since, &at, &size);
        if (!result.code) give_back(how, at, size);
        if (child) note(&all, result);
        if (write(out, &result, sizeof result) != sizeof result) return 6;
    }
    if (!child) return 0;
    if (read(in, &other, sizeof other) != sizeof other) return 6;
    note(&all, other);
    waitpid(child, 0, 0);
    return report(&all);
}

int main(int argc, char **argv)
{
    if (argc < 5) return fprintf(stderr, "hand_over HOW ROUNDS PERCENT PAUSE_MS\n"), 2;
    int rounds = atoi(argv[2]), percent = atoi(argv[3]), pause = atoi(argv[4]);
    if (argc > 5) return leave(argv[1], rounds, percent, atoi(argv[5]), argv);
    for (char *const *how = (char *[]){"free", "unmap", "trim", "reset", 0}; *how; how++)
        if (!strcmp(argv[1], *how)) return in_turn(argv[1], (rounds + 1) / 2, percent);
    return one_after_the_other(argv[1], rounds, percent, pause, argv);
}
