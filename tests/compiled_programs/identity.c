/* Numbers and handles by which libraries tell two objects apart: docs/identity.md has the rule for each. */
#include "driver.h"
#include <pthread.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROUNDS = 1000, CONTEXTS = 2, THREADS = 3, MOST = 8 * ROUNDS };

static uint64_t seen[MOST];
static int count;
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;

/* Begins to collect what must differ. */
static void forget(void)
{
    count = 0;
}

static void note_new(uint64_t number)
{
    pthread_mutex_lock(&guard);
    for (int i = 0; i < count; i++) REQUIRE(seen[i] != number);
    REQUIRE(count < MOST);
    seen[count++] = number;
    pthread_mutex_unlock(&guard);
}

static uint64_t stream_id(CUstream stream)
{
    unsigned long long id = ~0ull;
    OK(cuStreamGetId(stream, &id));
    REQUIRE(id != ~0ull);
    return id;
}

static uint64_t context_id(CUcontext context)
{
    unsigned long long id = ~0ull;
    OK(cuCtxGetId(context, &id));
    REQUIRE(id != ~0ull);
    return id;
}

static CUcontext contexts[CONTEXTS];

/* cuStreamGetId: unique in the process, whatever thread or context; NULL and the names of the default streams agree. */
static void *default_streams(void *main_thread)
{
    for (int i = 0; i < CONTEXTS; i++) {
        OK(cuCtxSetCurrent(contexts[i]));
        REQUIRE(stream_id(NULL) == stream_id(CU_STREAM_LEGACY));
        REQUIRE(stream_id(CU_STREAM_PER_THREAD) == stream_id(CU_STREAM_PER_THREAD));
        if (main_thread) note_new(stream_id(CU_STREAM_LEGACY));
        note_new(stream_id(CU_STREAM_PER_THREAD));
    }
    return NULL;
}

static void streams(void)
{
    forget();
    default_streams(contexts);
    for (int i = 1; i < THREADS; i++) {
        pthread_t thread;
        REQUIRE(pthread_create(&thread, NULL, default_streams, NULL) == 0);
        REQUIRE(pthread_join(thread, NULL) == 0);
    }
    OK(cuCtxSetCurrent(contexts[0]));
    for (int i = 0; i < ROUNDS; i++) {
        CUstream stream;
        OK(cuStreamCreate(&stream, i % 2 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT));
        note_new(stream_id(stream));
        OK(cuStreamDestroy(stream));
    }
    CUstream both[2];
    for (int i = 0; i < 2; i++) OK(cuStreamCreate(&both[i], CU_STREAM_NON_BLOCKING));
    REQUIRE(both[0] != both[1]);
    for (int i = 0; i < 2; i++) OK(cuStreamDestroy(both[i]));
}

/* cuCtxGetId: unique for the life of the program. */
static void contexts_and_pools(void)
{
    forget();
    for (int i = 0; i < CONTEXTS; i++) note_new(context_id(contexts[i]));
    for (int i = 0; i < ROUNDS / 10; i++) {
        CUcontext context;
        OK(cuCtxCreate(&context, NULL, 0, 0));
        REQUIRE(context_id(NULL) == context_id(context));
        note_new(context_id(context));
        OK(cuCtxDestroy(context));
    }
    OK(cuCtxSetCurrent(contexts[0]));
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}}};
    CUmemoryPool standard, again, current, own[2];
    OK(cuDeviceGetDefaultMemPool(&standard, 0));
    OK(cuDeviceGetDefaultMemPool(&again, 0));
    OK(cuDeviceGetMemPool(&current, 0));
    REQUIRE(standard == again && standard == current);
    for (int i = 0; i < 2; i++) OK(cuMemPoolCreate(&own[i], &properties));
    REQUIRE(own[0] != own[1] && own[0] != standard && own[1] != standard);
    for (int i = 0; i < 2; i++) OK(cuMemPoolDestroy(own[i]));
}

/* CU_POINTER_ATTRIBUTE_BUFFER_ID: unique for each allocation of the process, whatever its kind, and the same over all
 * of it, although addresses are used again. */
static void note_buffer(CUdeviceptr memory, size_t size)
{
    unsigned long long first = ~0ull, last = ~0ull;
    OK(cuPointerGetAttribute(&first, CU_POINTER_ATTRIBUTE_BUFFER_ID, memory));
    OK(cuPointerGetAttribute(&last, CU_POINTER_ATTRIBUTE_BUFFER_ID, memory + size - 1));
    REQUIRE(first == last);
    note_new(first);
}

static void mapped_buffer(void)
{
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}}};
    CUmemGenericAllocationHandle physical;
    CUdeviceptr place;
    size_t size;
    OK(cuMemGetAllocationGranularity(&size, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    OK(cuMemCreate(&physical, size, &properties, 0));
    OK(cuMemAddressReserve(&place, size, 0, 0, 0));
    OK(cuMemMap(place, size, 0, physical, 0));
    note_buffer(place, size);
    OK(cuMemUnmap(place, size));
    OK(cuMemAddressFree(place, size));
    OK(cuMemRelease(physical));
}

static void variable(void)
{
    CUmodule module;
    CUdeviceptr place;
    size_t size;
    OK(cuModuleLoadData(&module, scale_ptx));
    OK(cuModuleGetGlobal(&place, &size, module, "bias"));
    note_buffer(place, size);
    OK(cuModuleUnload(module));
}

static void buffers(void)
{
    static char own[8192];
    forget();
    for (int i = 0; i < ROUNDS; i++) {
        CUdeviceptr memory;
        void *host;
        switch (i % 8) {
        case 0:
            OK(cuMemAllocAsync(&memory, 512, NULL));
            note_buffer(memory, 512);
            OK(cuMemFreeAsync(memory, NULL));
            OK(cuStreamSynchronize(NULL));
            break;
        case 1:
            OK(cuMemAllocHost(&host, 4096));
            note_buffer((CUdeviceptr)(uintptr_t)host, 4096);
            OK(cuMemFreeHost(host));
            break;
        case 2:
            OK(cuMemHostRegister(own, sizeof own, 0));
            note_buffer((CUdeviceptr)(uintptr_t)own, sizeof own);
            OK(cuMemHostUnregister(own));
            break;
        case 3:
            OK(cuMemAllocManaged(&memory, 4096, CU_MEM_ATTACH_GLOBAL));
            note_buffer(memory, 4096);
            OK(cuMemFree(memory));
            break;
        case 4:
            mapped_buffer();
            break;
        case 5:
            variable();
            break;
        default:
            OK(cuMemAlloc(&memory, 512));
            note_buffer(memory, 512);
            OK(cuMemFree(memory));
        }
    }
}

/* A kernel has one handle in its module, however often it is asked for; modules, events and kernels never share one. */
static void code_and_events(void)
{
    CUmodule modules[2];
    CUfunction first[2], again, other;
    for (int i = 0; i < 2; i++) {
        OK(cuModuleLoadData(&modules[i], scale_ptx));
        OK(cuModuleGetFunction(&first[i], modules[i], "scale"));
        OK(cuModuleGetFunction(&again, modules[i], "scale"));
        OK(cuModuleGetFunction(&other, modules[i], "nothing"));
        REQUIRE(first[i] == again && first[i] != other);
    }
    REQUIRE(modules[0] != modules[1] && first[0] != first[1]);
    for (int i = 0; i < 2; i++) OK(cuModuleUnload(modules[i]));
    forget();
    CUevent events[64];
    for (int i = 0; i < 64; i++) {
        OK(cuEventCreate(&events[i], CU_EVENT_DEFAULT));
        note_new((uint64_t)(uintptr_t)events[i]);
    }
    for (int i = 0; i < 64; i++) OK(cuEventDestroy(events[i]));
}

/* cuStreamGetCaptureInfo: the id of a capture is unique for the life of the process; nodes differ within a graph and
 * between a graph and its clone. */
static void captures_and_nodes(void)
{
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    forget();
    for (int i = 0; i < ROUNDS; i++) {
        CUgraph graph;
        CUstreamCaptureStatus status;
        cuuint64_t id = ~0ull;
        OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
        OK(cuStreamGetCaptureInfo_v2(stream, &status, &id, NULL, NULL, NULL));
        REQUIRE(status == CU_STREAM_CAPTURE_STATUS_ACTIVE && id != ~0ull);
        note_new(id);
        OK(cuStreamEndCapture(stream, &graph));
        OK(cuGraphDestroy(graph));
    }
    OK(cuStreamDestroy(stream));
    forget();
    CUgraph graph, clone;
    OK(cuGraphCreate(&graph, 0));
    CUgraphNode nodes[16], copy;
    for (int i = 0; i < 16; i++) {
        OK(cuGraphAddEmptyNode(&nodes[i], graph, i ? &nodes[i - 1] : NULL, i ? 1 : 0));
        note_new((uint64_t)(uintptr_t)nodes[i]);
    }
    OK(cuGraphClone(&clone, graph));
    REQUIRE(clone != graph);
    for (int i = 0; i < 16; i++) {
        OK(cuGraphNodeFindInClone(&copy, nodes[i], clone));
        note_new((uint64_t)(uintptr_t)copy);
    }
    OK(cuGraphDestroy(clone));
    OK(cuGraphDestroy(graph));
}

/* Both functions for a device's UUID agree. */
static void devices(void)
{
    CUuuid old, current;
    OK(cuDeviceGetUuid(&old, 0));
    OK(cuDeviceGetUuid_v2(&current, 0));
    REQUIRE(memcmp(&old, &current, sizeof old) == 0);
}

int main(void)
{
    contexts[0] = start();
    OK(cuCtxCreate(&contexts[1], NULL, 0, 0));
    OK(cuCtxSetCurrent(contexts[0]));
    uint64_t before[] = {stream_id(NULL), stream_id(CU_STREAM_PER_THREAD), context_id(NULL)};
    streams();
    contexts_and_pools();
    buffers();
    code_and_events();
    captures_and_nodes();
    devices();
    /* A child that ends changes nothing for its parent. */
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) _exit(0);
    int status = 1;
    REQUIRE(waitpid(child, &status, 0) == child && status == 0);
    OK(cuCtxSetCurrent(contexts[0]));
    uint64_t after[] = {stream_id(NULL), stream_id(CU_STREAM_PER_THREAD), context_id(NULL)};
    REQUIRE(memcmp(before, after, sizeof before) == 0);
    return passed();
}
