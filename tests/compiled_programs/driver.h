/* What programs of the driver interface share: a start, words to and from the device, and a kernel. */
#pragma once
#include "check.h"
#include <cuda.h>
#include <string.h>

enum { WORDS = 64 };

/* scale: data[i] = data[i] * factor + bias, of which bias is a variable of the module; one thread for each word. */
static const char *const scale_ptx =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .global .align 4 .u32 bias = 5;\n"
    ".visible .entry scale(.param .u64 data, .param .u32 factor)\n"
    "{\n"
    "    .reg .b64 %d<4>;\n    .reg .b32 %r<9>;\n"
    "    ld.param.u64 %d1, [data];\n    ld.param.u32 %r1, [factor];\n"
    "    mov.u32 %r5, %ctaid.x;\n    mov.u32 %r6, %ntid.x;\n    mov.u32 %r7, %tid.x;\n"
    "    mad.lo.u32 %r2, %r5, %r6, %r7;\n    mul.wide.u32 %d2, %r2, 4;\n    add.s64 %d1, %d1, %d2;\n"
    "    ld.global.u32 %r3, [%d1];\n    ld.global.u32 %r4, [bias];\n"
    "    mad.lo.u32 %r3, %r3, %r1, %r4;\n    st.global.u32 [%d1], %r3;\n    ret;\n"
    "}\n"
    ".visible .entry nothing() { ret; }\n";

/* The first device's primary context, current. */
static inline CUcontext start(void)
{
    CUcontext context;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    return context;
}

static inline int attribute(CUdevice_attribute which)
{
    int value = -1;
    OK(cuDeviceGetAttribute(&value, which, 0));
    return value;
}

/* Fills words of the device and waits, which the fill itself need not do. */
static inline void fill(CUdeviceptr where, unsigned value, size_t words)
{
    OK(cuMemsetD32(where, value, words));
    OK(cuCtxSynchronize());
}

/* Fills the words with a recognisable sequence. */
static inline void count_up(unsigned *words, unsigned first)
{
    for (unsigned i = 0; i < WORDS; i++) words[i] = first + i;
}

static inline void require_words(CUdeviceptr data, unsigned factor, unsigned bias)
{
    unsigned words[WORDS];
    OK(cuMemcpyDtoH(words, data, sizeof words));
    for (unsigned i = 0; i < WORDS; i++) REQUIRE(words[i] == i * factor + bias);
}
