/* Starts the CUDA runtime given as a path, of whatever version: moves bytes with it, and has it load and launch a kernel
 * as nvcc's start-up code does, from a fat binary of one unit and from one of units that are linked when it is loaded. */
#include "check.h"
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>

static void *runtime;

static void *find(const char *name)
{
    void *address = dlsym(runtime, name);
    REQUIRE(address != NULL);
    return address;
}

/* A fat binary with one entry: PTX as it is. remoting/driverapi/src/fatbin.rs describes the layout. */
struct fat_binary {
    uint32_t magic;
    uint16_t version, header;
    uint64_t bytes;
    uint16_t kind, entry_version;
    uint32_t entry_header;
    uint64_t payload;
    uint32_t compressed, options;
    uint16_t ptx_minor, ptx_major;
    uint32_t architecture, name, name_bytes;
    uint64_t flags, reserved, plain;
    char ptx[1024];
};

struct wrapper {
    uint32_t magic, version;
    const void *container;
    const void *const *linked;
};

static void pack(struct fat_binary *fat, const char *code)
{
    *fat = (struct fat_binary){.magic = 0xba55ed50, .version = 1, .header = 16, .kind = 1, .entry_version = 0x101,
                               .entry_header = 64, .ptx_major = 7, .architecture = 50, .name = 64, .flags = 0x11};
    fat->payload = sizeof fat->ptx;
    fat->bytes = 64 + sizeof fat->ptx;
    int written = snprintf(fat->ptx, sizeof fat->ptx, ".version 7.0\n.target sm_50\n.address_size 64\n%s", code);
    REQUIRE(written < (int)sizeof fat->ptx);
}

static const char whole[] =
    ".visible .entry answer(.param .u64 to) {\n"
    "  .reg .b64 %a; ld.param.u64 %a, [to]; st.global.u32 [%a], 42; ret;\n}\n";
static const char caller[] =
    ".extern .func (.param .b32 out) value();\n"
    ".visible .entry answer(.param .u64 to) {\n"
    "  .reg .b64 %a; .reg .b32 %r; .param .b32 got;\n"
    "  call.uni (got), value; ld.param.b32 %r, [got];\n"
    "  ld.param.u64 %a, [to]; st.global.u32 [%a], %r; ret;\n}\n";
static const char callee[] =
    ".visible .func (.param .b32 out) value() {\n  st.param.b32 [out], 43; ret;\n}\n";

struct size3 {
    unsigned x, y, z;
};

static void stub(void)
{
}
static void linked_stub(void)
{
}

/* Registers a program's device code before the runtime's first call, as start-up code does. */
static void give(struct wrapper *wrapper, void (*host)(void))
{
    void **(*begin)(void *) = (void **(*)(void *))find("__cudaRegisterFatBinary");
    void (*function)(void **, const char *, char *, const char *, int, void *, void *, void *, void *, int *) =
        (void (*)(void **, const char *, char *, const char *, int, void *, void *, void *, void *, int *))find(
            "__cudaRegisterFunction");
    void (*end)(void **) = (void (*)(void **))find("__cudaRegisterFatBinaryEnd");
    void **handle = begin(wrapper);
    function(handle, (const char *)host, "answer", "answer", -1, NULL, NULL, NULL, NULL, NULL);
    end(handle);
}

static unsigned launched(void (*host)(void))
{
    int (*allocate)(void **, size_t) = (int (*)(void **, size_t))find("cudaMalloc");
    int (*copy)(void *, const void *, size_t, int) = (int (*)(void *, const void *, size_t, int))find("cudaMemcpy");
    int (*launch)(const void *, struct size3, struct size3, void **, size_t, void *) =
        (int (*)(const void *, struct size3, struct size3, void **, size_t, void *))find("cudaLaunchKernel");
    void *memory;
    unsigned result = 0;
    OK(allocate(&memory, sizeof result));
    void *arguments[] = {&memory};
    struct size3 one = {1, 1, 1};
    OK(launch((const void *)host, one, one, arguments, 0, NULL));
    OK(copy(&result, memory, sizeof result, 2)); /* device to host */
    return result;
}

int main(int argc, char **argv)
{
    REQUIRE(argc == 2);
    runtime = dlopen(argv[1], RTLD_NOW);
    if (!runtime) fprintf(stderr, "%s\n", dlerror());
    REQUIRE(runtime != NULL);

    static struct fat_binary plain, first, second;
    pack(&plain, whole);
    pack(&first, caller);
    pack(&second, callee);
    static const void *units[3];
    units[0] = &first; /* the list may name the container of the wrapper */
    units[1] = &second;
    static struct wrapper one, two;
    one = (struct wrapper){.magic = 0x466243b1, .version = 1, .container = &plain};
    two = (struct wrapper){.magic = 0x466243b1, .version = 2, .container = &first, .linked = units};
    give(&one, stub);
    give(&two, linked_stub);

    int (*count)(int *) = (int (*)(int *))find("cudaGetDeviceCount");
    int (*allocate)(void **, size_t) = (int (*)(void **, size_t))find("cudaMalloc");
    int (*fill)(void *, int, size_t) = (int (*)(void *, int, size_t))find("cudaMemset");
    int (*copy)(void *, const void *, size_t, int) = (int (*)(void *, const void *, size_t, int))find("cudaMemcpy");
    int devices = 0;
    OK(count(&devices));
    REQUIRE(devices >= 1);
    void *memory;
    unsigned char host[1000], expected[1000];
    memset(expected, 0x5a, sizeof expected);
    OK(allocate(&memory, sizeof host));
    OK(fill(memory, 0x5a, sizeof host));
    OK(copy(host, memory, sizeof host, 2));
    REQUIRE(memcmp(host, expected, sizeof host) == 0);
    REQUIRE(launched(stub) == 42);
    REQUIRE(launched(linked_stub) == 43);
    return passed();
}
