/* What programs of graphs share. */
#pragma once
#include "driver.h"

static inline CUstream new_stream(void)
{
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

static inline CUevent new_event(void)
{
    CUevent event;
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    return event;
}

static inline unsigned word(CUdeviceptr where)
{
    unsigned value;
    OK(cuMemcpyDtoH(&value, where, sizeof value));
    return value;
}
