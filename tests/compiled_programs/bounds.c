/* A kernel that touches the byte behind an allocation breaks its context (700), whatever kind of memory it is; the last
 * byte of it is as good as the first. Each access is tried in a process of its own. */
#include "driver.h"
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* touch: reads the byte at an address and writes it back. late: does that after a while. */
static const char *const touch_ptx =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry touch(.param .u64 at)\n"
    "{\n"
    "    .reg .b64 %d;\n    .reg .b16 %h;\n"
    "    ld.param.u64 %d, [at];\n    ld.volatile.global.u8 %h, [%d];\n    st.volatile.global.u8 [%d], %h;\n    ret;\n"
    "}\n"
    ".visible .entry late(.param .u64 at)\n"
    "{\n"
    "    .reg .b64 %d;\n    .reg .b16 %h;\n    .reg .b32 %r;\n    .reg .pred %p;\n"
    "    ld.param.u64 %d, [at];\n    mov.u32 %r, 0;\n"
    "again:\n    add.u32 %r, %r, 1;\n    setp.lt.u32 %p, %r, 20000;\n    @%p bra again;\n"
    "    ld.volatile.global.u8 %h, [%d];\n    st.volatile.global.u8 [%d], %h;\n    ret;\n"
    "}\n";

enum { SIZE = 1000 };

static CUfunction touch, late;

static CUresult touched(CUdeviceptr at)
{
    void *arguments[] = {&at};
    OK(cuLaunchKernel(touch, 1, 1, 1, 1, 1, 1, 0, 0, arguments, 0));
    return cuCtxSynchronize();
}

static CUdeviceptr allocated(size_t size)
{
    CUdeviceptr memory;
    OK(cuMemAlloc(&memory, size));
    return memory;
}

static CUdeviceptr plain(void) { return allocated(SIZE); }

/* Others lie beside it, before and behind. */
static CUdeviceptr among_others(void)
{
    CUdeviceptr middle;
    for (int i = 0; i < 10; i++) {
        CUdeviceptr other = allocated(SIZE);
        if (i == 5) middle = other;
    }
    return middle;
}

/* One that was longer lay there before. */
static CUdeviceptr where_one_was_freed(void)
{
    OK(cuMemFree(allocated(2 * SIZE)));
    return allocated(SIZE);
}

static CUdeviceptr large(void) { return allocated((5 << 20) + SIZE) + (5 << 20); }

static CUdeviceptr pooled(void)
{
    CUdeviceptr first, again;
    OK(cuMemAllocAsync(&first, SIZE + 100, 0));
    OK(cuMemFreeAsync(first, 0));
    OK(cuMemAllocAsync(&again, SIZE, 0));
    OK(cuCtxSynchronize());
    return again;
}

static CUdeviceptr of_graph(void)
{
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec executable;
    CUDA_MEM_ALLOC_NODE_PARAMS wanted = {.bytesize = SIZE};
    wanted.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddMemAllocNode(&node, graph, 0, 0, &wanted));
    OK(cuGraphInstantiate(&executable, graph, 0));
    OK(cuGraphLaunch(executable, 0));
    OK(cuCtxSynchronize());
    return wanted.dptr;
}

static CUdeviceptr page_locked(void)
{
    void *memory;
    OK(cuMemHostAlloc(&memory, SIZE, 0));
    memset(memory, 1, SIZE);
    return (CUdeviceptr)memory;
}

static CUdeviceptr registered(void)
{
    char *memory = mmap(0, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CUdeviceptr device;
    REQUIRE(memory != MAP_FAILED);
    OK(cuMemHostRegister(memory, SIZE, 0));
    OK(cuMemHostGetDevicePointer(&device, memory, 0));
    return device;
}

static CUdeviceptr managed(void)
{
    CUdeviceptr memory;
    OK(cuMemAllocManaged(&memory, SIZE, CU_MEM_ATTACH_GLOBAL));
    return memory;
}

static const struct kind {
    const char *name;
    CUdeviceptr (*make)(void);
} kinds[] = {
    {"plain", plain}, {"among others", among_others}, {"where one was freed", where_one_was_freed}, {"large", large},
    {"pooled", pooled}, {"of a graph", of_graph}, {"page-locked", page_locked}, {"registered", registered},
    {"managed", managed},
};

static void start_touching(void)
{
    CUmodule module;
    start();
    OK(cuModuleLoadData(&module, touch_ptx));
    OK(cuModuleGetFunction(&touch, module, "touch"));
    OK(cuModuleGetFunction(&late, module, "late"));
}

/* What the last accesses in an allocation and one behind it answer. */
static void try_ends(CUdeviceptr memory)
{
    OK(touched(memory));
    OK(touched(memory + SIZE - 1));
    EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, touched(memory + SIZE));
}

static void require_success(pid_t child, const char *name)
{
    int status;
    REQUIRE(waitpid(child, &status, 0) == child);
    if (status != 0) fprintf(stderr, "memory that is %s\n", name);
    REQUIRE(status == 0);
}

/* In a process that starts CUDA anew. */
static void try_kind(const struct kind *kind)
{
    fflush(0);
    pid_t child = fork();
    if (child == 0) {
        start_touching();
        try_ends(kind->make());
        _exit(0);
    }
    require_success(child, kind->name);
}

/* Memory of another process, with more of that beside it; here it ends where it does there. */
static void try_another_process(void)
{
    int ends[2];
    CUipcMemHandle handle;
    CUdeviceptr memory;
    REQUIRE(pipe(ends) == 0);
    fflush(0);
    pid_t child = fork();
    if (child == 0) {
        REQUIRE(read(ends[0], &handle, sizeof handle) == sizeof handle);
        start_touching();
        OK(cuIpcOpenMemHandle(&memory, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
        try_ends(memory);
        _exit(0);
    }
    start_touching();
    memory = among_others();
    OK(cuIpcGetMemHandle(&handle, memory));
    REQUIRE(write(ends[1], &handle, sizeof handle) == sizeof handle);
    require_success(child, "another process's");
    OK(touched(memory + SIZE - 1));
}

/* Memory that was freed is no more, while that beside it stays. */
static void try_freed(void)
{
    CUdeviceptr memory[3];
    for (int i = 0; i < 3; i++) memory[i] = allocated(SIZE);
    OK(cuMemFree(memory[1]));
    OK(touched(memory[0]));
    OK(touched(memory[2] + SIZE - 1));
    EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, touched(memory[1]));
}

/* Memory of a pool is used again in its stream, shorter and longer, while kernels that had it before run. */
static void try_reused_in_a_stream(void)
{
    static const size_t sizes[] = {4608, 4096, 4600, 3000};
    for (int i = 0; i < 200; i++) {
        size_t size = sizes[i % 4];
        CUdeviceptr memory, last;
        OK(cuMemAllocAsync(&memory, size, 0));
        last = memory + size - 1;
        void *arguments[] = {&last};
        OK(cuLaunchKernel(late, 1, 1, 1, 1, 1, 1, 0, 0, arguments, 0));
        OK(cuMemFreeAsync(memory, 0));
    }
    OK(cuCtxSynchronize());
}

int main(void)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) try_kind(&kinds[i]);
    try_another_process();
    try_reused_in_a_stream();
    try_freed();
    return passed();
}
