/* What `remotegpu run` has programs find in place of NVRTC where the GPU is the software GPU, which executes PTX. Every call
 * goes to the real NVRTC; but where a program asks for machine code (sm_80), it compiles for compute_80, and what the program
 * then takes for machine code is the PTX, which cuModuleLoadData accepts as well. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ERROR_INTERNAL = 11 };

typedef long (*function)(long, long, long, long, long, long);

/* What the real one exports, of all versions 12 and 13. No function has more than six parameters. */
#define FORWARDED(each)                                                                                                 \
    each(__nvrtcCPEx) each(__nvrtcNvvmHandle) each(nvrtcAddNameExpression) each(nvrtcCreateProgram)                           \
    each(nvrtcGetBundledHeadersInfo) each(nvrtcGetLTOIR) each(nvrtcGetLTOIRSize)                    \
    each(nvrtcGetLoweredName) each(nvrtcGetNVVM) each(nvrtcGetNVVMSize) each(nvrtcGetNumSupportedArchs) each(nvrtcGetOptiXIR)   \
    each(nvrtcGetOptiXIRSize) each(nvrtcGetPCHCreateStatus) each(nvrtcGetPCHHeapSize) each(nvrtcGetPCHHeapSizeRequired)       \
    each(nvrtcGetPTX) each(nvrtcGetPTXSize) each(nvrtcGetProgramLog) each(nvrtcGetProgramLogSize) each(nvrtcGetSupportedArchs)  \
    each(nvrtcGetTileIR) each(nvrtcGetTileIRSize) each(nvrtcInstallBundledHeaders) each(nvrtcRemoveBundledHeaders)            \
    each(nvrtcSetFlowCallback) each(nvrtcSetPCHHeapSize) each(nvrtcVersion)
#define CHANGED(each)                                                                                     \
    each(nvrtcCompileProgram) each(nvrtcDestroyProgram) each(nvrtcGetCUBIN) each(nvrtcGetCUBINSize)       \
    each(nvrtcGetErrorString)

#define INDEX(name) AT_##name,
enum { FORWARDED(INDEX) CHANGED(INDEX) COUNT };
#define NAME(name) #name,
static const char *const names[COUNT] = {FORWARDED(NAME) CHANGED(NAME)};

static function found[COUNT];
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* The name that is looked for: our own, then that of the other version. Who asks for no version, as `dlsym(RTLD_DEFAULT)`
 * does, gets the first stand-in that is loaded, whichever version is installed. */
static char wanted[] = SONAME;

/* By this a stand-in knows another one, of whichever copy of remotegpu. */
__attribute__((visibility("default"))) const char remotegpu_stand_in[] = SONAME;

/* Whether the file is there, and not a stand-in: those that matter are loaded. */
static int is_real(const char *file)
{
    struct stat of;
    if (stat(file, &of) != 0) return 0;
    void *handle = dlopen(file, RTLD_LAZY | RTLD_NOLOAD);
    int is_stand_in = handle && dlsym(handle, "remotegpu_stand_in");
    if (handle) dlclose(handle);
    return !is_stand_in;
}

static int in_folder(const char *folder, char *file)
{
    return snprintf(file, PATH_MAX, "%s/%s", folder, wanted) < PATH_MAX && is_real(file);
}

/* Where NVIDIA's wheels have it, for a library of some package beside them: .../site-packages/nvidia/cu13/lib. */
static int beside_package(const char *library, char *file)
{
    static const char *const kinds[] = {"/site-packages/", "/dist-packages/"};
    for (size_t kind = 0; kind < 2; kind++) {
        const char *end = strstr(library, kinds[kind]);
        char pattern[PATH_MAX];
        glob_t list;
        if (!end || snprintf(pattern, sizeof pattern, "%.*s%snvidia/*/lib/%s", (int)(end - library), library, kinds[kind], wanted) >= PATH_MAX) continue;
        int none = glob(pattern, 0, NULL, &list);
        if (none) continue;
        for (size_t at = 0; at < list.gl_pathc; at++)
            if (is_real(list.gl_pathv[at]) && snprintf(file, PATH_MAX, "%s", list.gl_pathv[at]) < PATH_MAX) {
                globfree(&list);
                return 1;
            }
        globfree(&list);
    }
    return 0;
}

/* What is loaded is listed first and looked at later, when the loader is not locked. */
struct loaded {
    struct loaded *next;
    char path[];
};

static int list(struct dl_phdr_info *library, size_t size, void *data)
{
    struct loaded **last = data;
    const char *path = library->dlpi_name ? library->dlpi_name : "";
    struct loaded *one = malloc(sizeof *one + strlen(path) + 1);
    (void)size;
    if (!one) return 1;
    strcpy(one->path, path);
    one->next = *last;
    *last = one;
    return 0;
}

/* A library that is loaded: it may be the real one itself, have a search path that leads to it, or be a package's. Its own
 * search path comes before what all libraries have in common, as for the loader. */
static int by_library(const char *path, int own, char *file)
{
    const char *base = strrchr(path, '/');
    if (base && !strncmp(base + 1, wanted, strlen(wanted)) && is_real(path)) return snprintf(file, PATH_MAX, "%s", path) < PATH_MAX;
    void *handle = dlopen(*path ? path : NULL, RTLD_LAZY | RTLD_NOLOAD);
    int is_found = 0;
    Dl_serinfo head, *all;
    if (handle && dlinfo(handle, RTLD_DI_SERINFOSIZE, &head) == 0 && (all = malloc(head.dls_size))) {
        if (dlinfo(handle, RTLD_DI_SERINFOSIZE, all) == 0 && dlinfo(handle, RTLD_DI_SERINFO, all) == 0)
            for (unsigned at = 0; at < all->dls_cnt && !is_found; at++)
                is_found = own == !!(all->dls_serpath[at].dls_flags & LA_SER_RUNPATH) && in_folder(all->dls_serpath[at].dls_name, file);
        free(all);
    }
    if (handle) dlclose(handle);
    return is_found || (own && beside_package(path, file));
}

static int by_libraries(char *file)
{
    struct loaded *all = NULL;
    int is_found = 0;
    dl_iterate_phdr(list, &all);
    for (int own = 1; own >= 0; own--)
        for (struct loaded *one = all; one && !is_found; one = one->next) is_found = by_library(one->path, own, file);
    while (all) {
        struct loaded *next = all->next;
        free(all);
        all = next;
    }
    return is_found;
}

/* The cache of ldconfig has each path as a string. */
static int by_cache(char *file)
{
    int is_found = 0, cache = open("/etc/ld.so.cache", O_RDONLY | O_CLOEXEC);
    struct stat of;
    if (cache < 0) return 0;
    char *text = fstat(cache, &of) == 0 && of.st_size > 0 ? mmap(NULL, of.st_size, PROT_READ, MAP_PRIVATE, cache, 0) : MAP_FAILED;
    close(cache);
    if (text == MAP_FAILED) return 0;
    char name[] = "/" SONAME;
    strcpy(name + 1, wanted);
    for (char *at = text, *end = text + of.st_size; !is_found && (at = memmem(at, end - at, name, sizeof name));) {
        char *begin = at++;
        while (begin > text && begin[-1]) begin--;
        is_found = *begin == '/' && snprintf(file, PATH_MAX, "%s", begin) < PATH_MAX && is_real(file);
    }
    munmap(text, of.st_size);
    return is_found;
}

static int by_toolkit(char *file)
{
    static const char *const variables[] = {"CUDA_HOME", "CUDA_PATH", "CUDA_ROOT"};
    char folder[PATH_MAX];
    for (size_t at = 0; at < 3; at++) {
        const char *toolkit = getenv(variables[at]);
        if (toolkit && snprintf(folder, sizeof folder, "%s/lib64", toolkit) < PATH_MAX && in_folder(folder, file)) return 1;
    }
    return 0;
}

static void find(void)
{
    char file[PATH_MAX];
    int is_found = by_libraries(file) || by_toolkit(file) || by_cache(file);
    if (!is_found) {
        char *version = wanted + strlen(wanted) - 1;
        *version = *version == '2' ? '3' : '2';
        is_found = by_libraries(file) || by_toolkit(file) || by_cache(file);
    }
    void *real = is_found ? dlopen(file, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!real) {
        char line[2 * PATH_MAX];
        int length = snprintf(line, sizeof line, "remotegpu: software GPU: " SONAME " is not to be found%s%s; install NVRTC, or put its folder into LD_LIBRARY_PATH\n",
                              is_found ? ": " : "", is_found ? dlerror() : "");
        if (write(STDERR_FILENO, line, length < (int)sizeof line ? length : (int)sizeof line) < 0) return;
        return;
    }
    for (int at = 0; at < COUNT; at++) found[at] = (function)dlsym(real, names[at]);
}

static function real(int at)
{
    pthread_once(&once, find);
    return found[at];
}

#define EXPORTED __attribute__((visibility("default")))
#define FORWARD(name)                                                                       \
    EXPORTED long name(long a, long b, long c, long d, long e, long f)                      \
    {                                                                                       \
        function of = real(AT_##name);                                                      \
        return of ? of(a, b, c, d, e, f) : ERROR_INTERNAL;                                  \
    }

FORWARDED(FORWARD)

/* The programs that were compiled for another GPU than they asked for, and so have no machine code. */
struct changed {
    struct changed *next;
    void *program;
};
static struct changed *programs;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Whether the program is among them; takes it off, or puts it there. */
static int look(void *program, int take, int put)
{
    pthread_mutex_lock(&lock);
    struct changed **at = &programs;
    while (*at && (*at)->program != program) at = &(*at)->next;
    struct changed *of = *at;
    int is_there = of != NULL;
    if (is_there && take) {
        *at = of->next;
        free(of);
    } else if (!is_there && put && (of = malloc(sizeof *of))) {
        *of = (struct changed){programs, program};
        programs = of;
    }
    pthread_mutex_unlock(&lock);
    return is_there;
}

/* Where the name of a GPU begins in an option that says for which one to compile; `before` is the option in front of it. */
static const char *architecture(const char *option, const char *before)
{
    static const char *const forms[] = {"--gpu-architecture", "-arch", "--gpu-architecture=", "-arch="};
    for (size_t at = 0; at < 2; at++)
        if (before && !strcmp(before, forms[at])) return option;
    for (size_t at = 2; at < 4; at++)
        if (!strncmp(option, forms[at], strlen(forms[at]))) return option + strlen(forms[at]);
    return NULL;
}

EXPORTED long nvrtcCompileProgram(void *program, int count, const char *const *options)
{
    function of = real(AT_nvrtcCompileProgram);
    if (!of) return ERROR_INTERNAL;
    const char **own = calloc(count > 0 ? count : 1, sizeof *own);
    char **made = calloc(count > 0 ? count : 1, sizeof *made);
    int is_changed = 0;
    for (int at = 0; own && made && at < count; at++) {
        const char *name = architecture(options[at], at ? options[at - 1] : NULL);
        own[at] = options[at];
        if (!name || strncmp(name, "sm_", 3)) continue;
        if (asprintf(&made[at], "%.*scompute_%s", (int)(name - options[at]), options[at], name + 3) < 0) made[at] = NULL;
        else own[at] = made[at], is_changed = 1;
    }
    look(program, !is_changed, is_changed);
    long result = of((long)program, count, (long)(own && made ? own : options), 0, 0, 0);
    for (int at = 0; made && at < count; at++) free(made[at]);
    free(made);
    free(own);
    return result;
}

EXPORTED const char *nvrtcGetErrorString(int error)
{
    function of = real(AT_nvrtcGetErrorString);
    return of ? (const char *)of(error, 0, 0, 0, 0, 0) : "NVRTC_ERROR_INTERNAL_ERROR";
}

EXPORTED long nvrtcDestroyProgram(void **program)
{
    function of = real(AT_nvrtcDestroyProgram);
    if (program) look(*program, 1, 0);
    return of ? of((long)program, 0, 0, 0, 0, 0) : ERROR_INTERNAL;
}

EXPORTED long nvrtcGetCUBINSize(void *program, size_t *size)
{
    function of = real(look(program, 0, 0) ? AT_nvrtcGetPTXSize : AT_nvrtcGetCUBINSize);
    return of ? of((long)program, (long)size, 0, 0, 0, 0) : ERROR_INTERNAL;
}

EXPORTED long nvrtcGetCUBIN(void *program, char *image)
{
    function of = real(look(program, 0, 0) ? AT_nvrtcGetPTX : AT_nvrtcGetCUBIN);
    return of ? of((long)program, (long)image, 0, 0, 0, 0) : ERROR_INTERNAL;
}
