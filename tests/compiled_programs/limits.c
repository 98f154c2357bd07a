/* Memory that the driver takes by itself, for limits of contexts and for modules: it is the device's, and comes back. */
#include "driver.h"
#include <sched.h>

static const size_t MIB = 1 << 20;

static size_t room(void)
{
    size_t left, all;
    OK(cuMemGetInfo(&left, &all));
    return left;
}

/* What ends with a module may take its time. The test's own limit ends a wait for what never comes. */
static void require_back(size_t before)
{
    while (room() < before) sched_yield();
    REQUIRE(room() == before);
}

static size_t set_to(CUlimit limit)
{
    size_t value;
    OK(cuCtxGetLimit(&value, limit));
    return value;
}

/* How many bytes of the device one of the limit's bytes takes. */
static size_t each(CUlimit limit)
{
    if (limit != CU_LIMIT_STACK_SIZE) return 1;
    return (size_t)attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) *
           (size_t)attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
}

static void limit_takes_memory(CUlimit limit)
{
    size_t before = room(), first = set_to(limit);
    size_t more = (64 * MIB) / each(limit), most = before / each(limit);
    CUdeviceptr memory;
    OK(cuCtxSetLimit(limit, first + more));
    REQUIRE(set_to(limit) == first + more && room() <= before - 64 * MIB);
    /* What it takes nobody else gets, and what others have it does not. */
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&memory, before));
    size_t with = room();
    for (int i = 0; i < 3; i++) {
        EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuCtxSetLimit(limit, first + most + 1));
        REQUIRE(set_to(limit) == first + more && room() == with);
    }
    OK(cuMemAlloc(&memory, before / 2));
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuCtxSetLimit(limit, first + most / 4 * 3));
    OK(cuMemFree(memory));
    OK(cuCtxSetLimit(limit, first + most / 4 * 3));
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&memory, before / 2));
    /* A lower one gives back. */
    OK(cuCtxSetLimit(limit, first + more));
    REQUIRE(room() == with);
    OK(cuCtxSetLimit(limit, first));
    REQUIRE(set_to(limit) == first && room() == before);
    OK(cuMemAlloc(&memory, before / 4 * 3));
    OK(cuMemFree(memory));
}

static const CUlimit limits[] = {CU_LIMIT_MALLOC_HEAP_SIZE, CU_LIMIT_PRINTF_FIFO_SIZE, CU_LIMIT_STACK_SIZE};

static void raise_all(size_t bytes)
{
    for (int i = 0; i < 3; i++) OK(cuCtxSetLimit(limits[i], set_to(limits[i]) + bytes / each(limits[i])));
}

/* Several limits take their memory side by side, and together they may not take more than there is. */
static void limits_add_up(void)
{
    size_t before = room(), part = before / 3 / each(CU_LIMIT_STACK_SIZE) * each(CU_LIMIT_STACK_SIZE);
    size_t first[3];
    for (int i = 0; i < 3; i++) first[i] = set_to(limits[i]);
    raise_all(part);
    REQUIRE(room() <= before - 3 * part);
    for (int i = 0; i < 3; i++)
        EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuCtxSetLimit(limits[i], set_to(limits[i]) + before / each(limits[i])));
    for (int i = 0; i < 3; i++) OK(cuCtxSetLimit(limits[i], first[i]));
    REQUIRE(room() == before);
}

/* A context's limits end with it, whichever way it ends, and the next one has the ordinary ones. */
static void end_with_their_context(CUcontext primary)
{
    CUcontext other;
    size_t heap = set_to(CU_LIMIT_MALLOC_HEAP_SIZE), before = room();
    for (int i = 0; i < 3; i++) {
        OK(cuCtxCreate(&other, NULL, 0, 0));
        size_t with = room();
        REQUIRE(set_to(CU_LIMIT_MALLOC_HEAP_SIZE) == heap);
        raise_all(before / 8);
        REQUIRE(room() <= with - before / 4);
        OK(cuCtxDestroy(other));
        OK(cuCtxSetCurrent(primary));
        REQUIRE(room() == before);
    }
    raise_all(before / 8);
    REQUIRE(room() <= before - before / 4);
    OK(cuDevicePrimaryCtxReset(0));
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    OK(cuCtxSetCurrent(primary));
    REQUIRE(room() == before);
    REQUIRE(set_to(CU_LIMIT_MALLOC_HEAP_SIZE) == heap);
}

/* A module with a variable of a size. */
static CUresult load(CUmodule *module, size_t size)
{
    char text[256];
    snprintf(text, sizeof text,
             ".version 7.0\n.target sm_70\n.address_size 64\n.visible .global .align 8 .b8 data[%zu];\n", size);
    return cuModuleLoadData(module, text);
}

static void images_take_memory(CUcontext primary)
{
    size_t before = room(), size, part = before / 8 * 3;
    CUmodule module, other;
    CUdeviceptr data, memory;
    OK(load(&module, part));
    OK(cuModuleGetGlobal(&data, &size, module, "data"));
    REQUIRE(size == part && room() <= before - part);
    OK(cuMemsetD8(data, 7, size));
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&memory, before - part + MIB));
    OK(load(&other, part));
    REQUIRE(room() <= before - 2 * part);
    for (int i = 0; i < 3; i++) {
        CUmodule third;
        EXPECT(CUDA_ERROR_OUT_OF_MEMORY, load(&third, part));
    }
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, part));
    OK(cuModuleUnload(other));
    /* Nothing of what is on its way back is missing for those who ask next. */
    OK(cuMemAlloc(&memory, part));
    OK(cuMemFree(memory));
    OK(cuModuleUnload(module));
    require_back(before);

    /* With its context a module goes, too. */
    CUcontext context;
    OK(cuCtxCreate(&context, NULL, 0, 0));
    OK(load(&module, part));
    OK(cuCtxDestroy(context));
    OK(cuCtxSetCurrent(primary));
    REQUIRE(room() == before);
}

/* Whoever asks for more than is left, and by whatever function, gets nothing of it. Managed memory, which a driver may
   keep elsewhere, has tests of its own on shares. */
static void nobody_gets_more(void)
{
    size_t before = room(), part = before / 4 * 3;
    CUdeviceptr memory, other;
    CUmodule module;
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec exec;
    CUDA_MEM_ALLOC_NODE_PARAMS wanted = {.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location =
                                         {CU_MEM_LOCATION_TYPE_DEVICE, 0}}, .bytesize = part};
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &wanted));
    OK(cuMemAlloc(&memory, before / 2));
    size_t with = room();
    for (int i = 0; i < 3; i++) {
        EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&other, part));
        EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuGraphInstantiate(&exec, graph, 0));
        EXPECT(CUDA_ERROR_OUT_OF_MEMORY, load(&module, part));
        for (int j = 0; j < 3; j++)
            EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuCtxSetLimit(limits[j], set_to(limits[j]) + part / each(limits[j])));
        REQUIRE(room() == with);
    }
    OK(cuMemFree(memory));
    REQUIRE(room() == before);
    /* Without the memory that was there each of them gets it. */
    OK(cuGraphInstantiate(&exec, graph, 0));
    REQUIRE(room() <= before - part);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(load(&module, part));
    REQUIRE(room() <= before - part);
    OK(cuModuleUnload(module));
    require_back(before);
}

int main(void)
{
    CUcontext context = start(), holder;
    /* Most of a large device is another context's, so that little has to be written. */
    CUdeviceptr rest;
    OK(cuCtxCreate(&holder, NULL, 0, 0));
    if (room() > 384 * MIB) OK(cuMemAlloc(&rest, room() - 256 * MIB));
    OK(cuCtxSetCurrent(context));
    for (int i = 0; i < 3; i++) limit_takes_memory(limits[i]);
    limits_add_up();
    images_take_memory(context);
    nobody_gets_more();
    end_with_their_context(context);
    return passed();
}
