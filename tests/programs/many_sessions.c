/* As many processes as the argument says, each with a session of its own, started one after the other.
 *
 * Prints `ready` when all have a context, or `failed`. Then, for each line of its input:
 *   work N   each launches and checks N times, all at once: `worked`, the sum of launches, the longest of each child's
 *            longest round in microseconds
 *   more     one process more, which is expected to get no session: `refused`, the CUDA error, milliseconds
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* A session's own words: data[i] = data[i] * 3 + seed. */
enum { WORDS = 256 };
static const char ptx[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry step(.param .u64 data, .param .u32 seed)\n{\n"
    ".reg .b64 %d<4>;\n.reg .b32 %r<5>;\n"
    "ld.param.u64 %d1, [data];\nld.param.u32 %r1, [seed];\nmov.u32 %r2, %tid.x;\n"
    "mul.wide.u32 %d2, %r2, 4;\nadd.s64 %d1, %d1, %d2;\nld.global.u32 %r3, [%d1];\n"
    "mad.lo.u32 %r3, %r3, 3, %r1;\nst.global.u32 [%d1], %r3;\nret;\n}\n";

typedef int (*call)();
static call function(void *library, const char *name)
{
    call found = (call)dlsym(library, name);
    if (!found) fprintf(stderr, "no %s\n", name), exit(3);
    return found;
}

static long microseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000L + now.tv_nsec / 1000;
}

struct answer { int code; int launches; long longest; };

/* One write of a pipe: never torn, whoever else writes. */
static void tell(int pipe, struct answer answer)
{
    if (write(pipe, &answer, sizeof answer) != sizeof answer) exit(4);
}

static void session(unsigned seed, int orders, int answers)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *context, *module, *kernel;
    if (!library) fprintf(stderr, "%s\n", dlerror()), exit(3);
    call launch = function(library, "cuLaunchKernel"), to = function(library, "cuMemcpyHtoD_v2"),
         from = function(library, "cuMemcpyDtoH_v2");
    uint64_t data = 0;
    unsigned words[WORDS], expected = seed;
    int code = function(library, "cuInit")(0);
    if (!code) code = function(library, "cuDevicePrimaryCtxRetain")(&context, 0);
    if (!code) code = function(library, "cuCtxSetCurrent")(context);
    tell(answers, (struct answer){code, 0, 0});
    if (code) exit(1);
    int rounds;
    while (read(orders, &rounds, sizeof rounds) == sizeof rounds) {
        struct answer answer = {0, 0, 0};
        for (int round = 0; round < rounds && !answer.code; round++) {
            long began = microseconds();
            if (!data) {
                for (int i = 0; i < WORDS; i++) words[i] = seed;
                if (!(answer.code = function(library, "cuModuleLoadData")(&module, ptx)) &&
                    !(answer.code = function(library, "cuModuleGetFunction")(&kernel, module, "step")) &&
                    !(answer.code = function(library, "cuMemAlloc_v2")(&data, sizeof words)))
                    answer.code = to(data, words, sizeof words);
            }
            void *parameters[] = {&data, &seed};
            if (!answer.code)
                answer.code = ((int (*)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                        void *, void **, void **))launch)(
                    kernel, 1, 1, 1, WORDS, 1, 1, 0, NULL, parameters, NULL);
            if (!answer.code) answer.code = from(words, data, sizeof words);
            expected = expected * 3 + seed;
            for (int i = 0; i < WORDS && !answer.code; i++)
                if (words[i] != expected) answer.code = -1;
            answer.launches += !answer.code;
            long took = microseconds() - began;
            if (took > answer.longest) answer.longest = took;
        }
        tell(answers, answer);
    }
    exit(0);
}

static struct answer next(int answers)
{
    struct answer answer = {-2, 0, 0};
    if (read(answers, &answer, sizeof answer) != sizeof answer) answer.code = -2;
    return answer;
}

int main(int argc, char **argv)
{
    int count = argc > 1 ? atoi(argv[1]) : 1, answers[2], *orders = calloc(count + 1, sizeof *orders);
    if (pipe(answers)) return 2;
    int started = 0;
    char line[64];
    for (;; started++) {
        int more = started >= count, order[2];
        if (more) {
            /* The last one has started: from here on by order of the input. */
            if (started == count) puts("ready"), fflush(stdout);
            for (;;) {
                if (!fgets(line, sizeof line, stdin)) return 0;
                if (!strncmp(line, "more", 4)) break;
                int rounds = atoi(line + 5), sum = 0;
                long longest = 0;
                for (int i = 0; i < count; i++)
                    if (write(orders[i], &rounds, sizeof rounds) != sizeof rounds) return 2;
                for (int i = 0; i < count; i++) {
                    struct answer answer = next(answers[0]);
                    if (answer.code) printf("failed %d\n", answer.code), fflush(stdout);
                    sum += answer.launches;
                    if (answer.longest > longest) longest = answer.longest;
                }
                printf("worked %d %ld\n", sum, longest), fflush(stdout);
            }
        }
        if (pipe(order)) return 2;
        long began = microseconds();
        pid_t child = fork();
        if (!child) {
            for (int i = 0; i < started && i < count; i++) close(orders[i]);
            close(order[1]), close(answers[0]);
            session(started + 1, order[0], answers[1]);
        }
        close(order[0]);
        if (child < 0) return 2;
        struct answer first = next(answers[0]);
        if (!more) {
            orders[started] = order[1];
            if (first.code) return printf("failed %d after %d\n", first.code, started), 1;
        } else {
            close(order[1]);
            printf("%s %d %ld\n", first.code ? "refused" : "admitted", first.code, (microseconds() - began) / 1000);
            fflush(stdout);
            waitpid(child, NULL, 0);
        }
    }
}
